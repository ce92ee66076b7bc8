// The site without a network: every file of it that was fetched once is kept, and taken where the network does not answer.
export {}; // a module of its own
const scope = self as unknown as {
  readonly registration: { readonly scope: string };
  readonly clients: { claim(): Promise<void> };
  skipWaiting(): Promise<void>;
  addEventListener(name: string, listener: (event: Fetching) => void): void;
};
type Fetching = { readonly request: Request; respondWith(answer: Promise<Response>): void; waitUntil(done: Promise<unknown>): void };
const KEPT = "megatron-memory-site";

/** The newest file where there is a network; what was kept of it is put aside behind the answer. */
const answer = async (request: Request): Promise<Response> => {
  const kept = await caches.open(KEPT);
  try {
    const found = await fetch(request);
    if (found.ok) await kept.put(request, found.clone());
    return found;
  } catch (error) {
    const before = await kept.match(request, { ignoreSearch: true });
    if (before) return before;
    throw error;
  }
};

scope.addEventListener("install", (event) => event.waitUntil(scope.skipWaiting()));
scope.addEventListener("activate", (event) => event.waitUntil(scope.clients.claim()));
scope.addEventListener("fetch", (event) => {
  if (event.request.method === "GET" && event.request.url.startsWith(scope.registration.scope)) event.respondWith(answer(event.request));
});
