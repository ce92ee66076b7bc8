// The engine in a Web Worker: the Python package itself, run by Pyodide. In: `{id, tool, arguments}`. Out: `{ready}` once,
// `{id, progress}`, and `{id, answer}` or `{id, error}`, which is one sentence; an error without an id is about the start.

type Question = { readonly id: number; readonly tool: string; readonly arguments: object };
type Found = { answer?: unknown; error?: string; questions?: readonly object[] };
type Asked = (request: string, tell: (how: string) => void) => string;

/** What is used of Pyodide (pyodide.d.ts of its package has all of it). */
interface Pyodide {
  readonly version: string;
  readonly lockfile: { readonly packages: { readonly numpy: { file_name: string } } };
  unpackArchive(archive: ArrayBuffer, format: "zip"): void;
  pyimport(module: string): { readonly asked: Asked; readonly __version__: string };
  loadPackage(names: string, options: { checkIntegrity: boolean; messageCallback: () => void; errorCallback: () => void }): Promise<unknown[]>;
}
type Loader = { loadPyodide(options: object): Promise<Pyodide> };
type Module = { readonly default: object };

/** What the site holds beside Pyodide: written with it. */
interface Contents {
  readonly version: string;
  readonly wheel: string;
  readonly numpy: string | null;
  /** Bytes that are fetched before the first answer. */
  readonly bytes: number;
}
/** How often it is said how much is there. */
const SAID_EACH = 2 ** 18;
/** What NumPy makes faster. */
const SEARCHES = ["plan", "export"];

interface Engine {
  readonly contents: Contents;
  readonly pyodide: Pyodide;
  readonly asked: Asked;
  numpy?: Promise<void>;
}

const scope = self as unknown as { postMessage(message: object): void; onmessage: (event: MessageEvent<Question>) => void };
const folder = new URL("./pyodide/", import.meta.url).href;

async function fetched(name: string): Promise<Response> {
  let response: Response;
  try {
    response = await fetch(new URL(name, import.meta.url));
  } catch {
    throw new Error(`${name} of this site cannot be fetched`);
  }
  if (!response.ok) throw new Error(`${name} of this site cannot be fetched: HTTP ${response.status}`);
  return response;
}

/** Lets WebAssembly compile while it loads, whatever type the file server gives the file; a file that is missing is an error. */
function streamAnyType(failed: (error: Error) => void): void {
  const compile = WebAssembly.instantiateStreaming.bind(WebAssembly);
  WebAssembly.instantiateStreaming = async (source: Response | PromiseLike<Response>, imports?: WebAssembly.Imports) => {
    try {
      const response = await source;
      if (!response.ok) throw new Error(`pyodide.asm.wasm of this site cannot be fetched: HTTP ${response.status}`);
      if (response.headers.get("Content-Type") === "application/wasm") return await compile(response, imports);
      return await compile(new Response(response.body, { headers: { "Content-Type": "application/wasm" } }), imports);
    } catch (error) {
      failed(error instanceof Error ? error : new Error(String(error)));
      throw error;
    }
  };
}

async function loaded(): Promise<Pyodide> {
  const parts = [`${folder}pyodide.js`, `${folder}pyodide.asm.js`].map((url) => import(/* @vite-ignore */ url));
  const lock = fetched("pyodide/pyodide-lock.json").then((response) => response.json());
  const [loader, module] = (await Promise.all(parts)) as [Loader, Module];
  return new Promise((resolve, reject) => {
    streamAnyType(reject);
    loader
      .loadPyodide({
        indexURL: folder,
        createPyodideModule: module.default,
        lockFileContents: lock,
        fullStdLib: false,
      })
      .then(resolve, reject);
  });
}

/** Says how many bytes are there, while the engine loads, whoever fetches them; what is asked later is not counted. */
function counted(total: () => number | undefined): () => void {
  const plain = self.fetch;
  let seen = 0;
  let said = 0;
  self.fetch = async (...asked: Parameters<typeof fetch>) => {
    const found = await plain.apply(self, asked);
    if (!found.ok || !found.body) return found;
    const body = found.body.pipeThrough(
      new TransformStream<Uint8Array, Uint8Array>({
        transform: (chunk, to) => {
          seen += chunk.byteLength;
          if (seen - said > SAID_EACH) scope.postMessage({ loading: { bytes: (said = seen), total: total() } });
          to.enqueue(chunk);
        },
      }),
    );
    return new Response(body, { status: found.status, headers: found.headers });
  };
  return () => {
    self.fetch = plain;
  };
}

async function start(): Promise<Engine> {
  const began = performance.now();
  let total: number | undefined;
  const enough = counted(() => total);
  const listed = fetched("engine.json").then((response) => response.json() as Promise<Contents>);
  void listed.then(({ bytes }) => (total = bytes)).catch(() => undefined);
  const wheel = listed.then((contents) => fetched(contents.wheel)).then((response) => response.arrayBuffer());
  const [contents, pyodide, archive] = await Promise.all([listed, loaded(), wheel]);
  const python = performance.now();
  enough();
  pyodide.unpackArchive(archive, "zip");
  const unpacked = performance.now();
  const { asked } = pyodide.pyimport("megatron_memory_estimator.service.page");
  const imported = performance.now();
  const seconds = { python: python - began, unpack: unpacked - python, import: imported - unpacked, all: imported - began };
  for (const name of Object.keys(seconds) as (keyof typeof seconds)[]) seconds[name] /= 1000;
  scope.postMessage({ ready: { version: contents.version, python: pyodide.version, seconds } });
  return { contents, pyodide, asked };
}

let engine: Promise<Engine> | undefined;

/** The engine; one that failed is started anew. */
function running(): Promise<Engine> {
  engine ??= start().catch((error: unknown) => {
    engine = undefined;
    throw new Error(`the engine of the page could not start: ${error instanceof Error ? error.message : String(error)}`);
  });
  return engine;
}

/** Load NumPy, where the site holds it: searches are faster and larger with it, and do without. */
async function numpy({ contents, pyodide }: Engine): Promise<void> {
  if (contents.numpy === null) return;
  const wheel = pyodide.lockfile.packages.numpy; // its checksum is that of the site's own list
  wheel.file_name = new URL(contents.numpy, folder).href;
  await pyodide.loadPackage("numpy", { checkIntegrity: true, messageCallback: () => undefined, errorCallback: () => undefined });
}

async function answered({ id, tool, arguments: given }: Question): Promise<Found> {
  const found = await running();
  const request = JSON.stringify({ tool, arguments: given });
  const tell = (how: string) => scope.postMessage({ id, progress: JSON.parse(how) as object });
  if (SEARCHES.includes(tool)) await (found.numpy ??= numpy(found).catch(() => undefined));
  try {
    return JSON.parse(found.asked(request, tell)) as Found;
  } catch (error) {
    engine = undefined; // an interpreter that ended is no good for the next question
    throw new Error(`the engine of the page ended: ${error instanceof Error ? error.message : String(error)}`);
  }
}

scope.onmessage = ({ data }) => {
  answered(data).then(
    (found) => scope.postMessage({ id: data.id, ...found }),
    (error: unknown) => scope.postMessage({ id: data.id, error: error instanceof Error ? error.message : String(error) }),
  );
};
running().catch((error: Error) => scope.postMessage({ error: error.message }));
