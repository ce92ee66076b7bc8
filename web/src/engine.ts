// What the page asks, and who answers: a server, a worker that runs the library, or the documents of a frozen report.

import { type Asked, SHORTENED, type Tool } from "./tools";

export type Progress = { readonly share?: number; readonly [name: string]: unknown };
export type Asking = { readonly signal?: AbortSignal; readonly progress?: (how: Progress) => void };

export interface Engine {
  /** Whether runs can be changed: not those of a frozen report. */
  readonly live: boolean;
  /** Where what is asked stays. */
  readonly place: string;
  /** The page that describes its API, where it has one. */
  readonly docs?: string;
  /** The document of a tool. Rejects with a Refusal that says in one sentence what is wrong, or an AbortError. */
  ask<T>(tool: Tool, request: Asked, asking?: Asking): Promise<T>;
}

/** What a run leaves open: the option of the command line that answers, and the values that its file names. */
export type Question = { readonly what: string; readonly option: string; readonly values: readonly string[] };

/** One sentence from the engine: the request is wrong, or cannot be answered; what of it can be settled. */
export class Refusal extends Error {
  constructor(said: string, readonly questions: readonly Question[] = []) {
    super(said);
  }
}

export const cancelled = () => new DOMException("cancelled", "AbortError");
export const isCancelled = (error: unknown) => error instanceof DOMException && error.name === "AbortError";
export const sentence = (error: unknown) => (error instanceof Error ? error.message : String(error));

const whole = (tool: Tool, request: Asked): Asked => (SHORTENED.has(tool) ? { ...request, detail: "full" } : request);

/** Tools that read a run again and again, in a process of their own: what nobody waits for ends. */
const ABORTED = new Set(["choices"]);

type Line = { readonly progress?: Progress; readonly answer?: unknown; readonly error?: string; readonly questions?: readonly Question[] };

/** `megatron-memory serve`, on the page's own origin. */
export class HttpEngine implements Engine {
  readonly live = true;
  readonly place = "goes to this page's server alone";
  readonly docs = "api/v1/docs";

  async ask<T>(tool: Tool, request: Asked, { signal, progress }: Asking = {}): Promise<T> {
    let response: Response;
    try {
      response = await fetch(`api/v1/${tool}`, {
        method: "POST",
        headers: { "Content-Type": "application/json", Accept: progress ? "application/x-ndjson" : "application/json" },
        body: JSON.stringify(whole(tool, request)),
        ...(signal && (progress || ABORTED.has(tool)) ? { signal } : {}), // a short one that is no longer wanted ends by itself: its process is needed at once
      });
    } catch (error) {
      if (isCancelled(error)) throw error;
      throw new Refusal("the server does not answer; is `megatron-memory serve` still running?");
    }
    if (response.ok && response.headers.get("Content-Type")?.startsWith("application/x-ndjson") && response.body) {
      return (await this.streamed(response.body, progress)) as T;
    }
    let found: { error?: string; questions?: readonly Question[] };
    try {
      found = await response.json();
    } catch (error) {
      if (isCancelled(error)) throw error;
      throw new Refusal(`the server answered with HTTP ${response.status}`);
    }
    if (signal?.aborted) throw cancelled();
    if (!response.ok) throw new Refusal(found.error ?? `the server answered with HTTP ${response.status}`, found.questions);
    return found as T;
  }

  private async streamed(body: ReadableStream<Uint8Array>, progress?: (how: Progress) => void): Promise<unknown> {
    const reader = body.pipeThrough(new TextDecoderStream() as ReadableWritablePair<string, Uint8Array>).getReader();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      const lines = (rest + (value ?? "")).split("\n");
      rest = done ? "" : (lines.pop() ?? "");
      for (const text of lines) {
        if (!text.trim()) continue;
        const line = JSON.parse(text) as Line;
        if (line.error !== undefined) throw new Refusal(line.error);
        if (line.answer !== undefined) return line.answer;
        if (line.progress) progress?.(line.progress);
      }
      if (done) throw new Refusal("the server ended before it had an answer");
    }
  }
}

/** How much of an engine in the page is loaded. */
export type Loading = { readonly bytes: number; readonly total?: number };
type Said = Line & { readonly id?: number; readonly ready?: object; readonly loading?: Loading };
type Job = {
  readonly id: number;
  readonly message: object;
  readonly later: boolean;
  readonly resolve: (answer: unknown) => void;
  readonly reject: (error: Error) => void;
  readonly progress: ((how: Progress) => void) | undefined;
};

/** Questions that wait for the others. */
const LATER = new Set(["choices", "lanes", "moment"]);

/** One worker, which gets one question at a time; it is ended where a long one is cancelled, and started anew by the next. */
class OneWorker {
  private worker: Worker | undefined;
  private waiting: Job[] = [];
  private running: Job | undefined;
  private last = 0;

  private start(): Worker {
    const worker = new Worker(new URL("worker.js", document.baseURI), { type: "module" });
    worker.onmessage = ({ data }: MessageEvent<Said>) => {
      if (data.ready) return void window.dispatchEvent(new CustomEvent("ready-engine"));
      if (data.loading) return void window.dispatchEvent(new CustomEvent<Loading>("loading-engine", { detail: data.loading }));
      if (data.id === undefined) {
        if (data.error !== undefined) this.fail(new Refusal(data.error));
        return;
      }
      const one = this.running;
      if (one?.id !== data.id) return;
      if (data.progress) return one.progress?.(data.progress);
      this.running = undefined;
      if (data.error !== undefined) one.reject(new Refusal(data.error, data.questions));
      else one.resolve(data.answer);
      this.next();
    };
    worker.onerror = (event) => {
      event.preventDefault();
      this.fail(new Refusal(`the engine of the page could not start: ${event.message || "worker.js or its files are missing"}`));
    };
    return worker;
  }

  private fail(error: Error): void {
    this.worker?.terminate();
    this.worker = undefined;
    const failed = this.running ? [this.running, ...this.waiting] : this.waiting;
    this.running = undefined;
    this.waiting = [];
    for (const one of failed) one.reject(error);
  }

  private next(): void {
    if (this.running || !this.waiting.length) return;
    const at = Math.max(0, this.waiting.findIndex((one) => !one.later));
    this.running = this.waiting.splice(at, 1)[0]!;
    this.worker ??= this.start();
    this.worker.postMessage(this.running.message);
  }

  private cancel(id: number): void {
    const waits = this.waiting.find((one) => one.id === id);
    this.waiting = this.waiting.filter((one) => one !== waits);
    waits?.reject(cancelled());
    const one = this.running;
    if (one?.id !== id) return;
    one.reject(cancelled());
    if (!one.progress) return; // its answer comes soon, and is dropped
    this.running = undefined;
    this.worker?.terminate(); // nothing else would stop a long one
    this.worker = this.start(); // at once, so that the next question does not wait for it
    this.next();
  }

  /** Start before there is a question. */
  begin(): void {
    this.worker ??= this.start();
  }

  ask(tool: string, request: Asked, { signal, progress }: Asking): Promise<unknown> {
    return new Promise((resolve, reject) => {
      if (signal?.aborted) return reject(cancelled());
      const id = ++this.last;
      this.waiting.push({ id, message: { id, tool, arguments: request }, later: LATER.has(tool), resolve, reject, progress });
      signal?.addEventListener("abort", () => this.cancel(id));
      this.next();
    });
  }
}

const SLOW = new Set(["plan", "advise"]);

/** Documents of one run that the site holds, so that the page has something to show while its engine loads. */
type First = { readonly run: object; readonly documents: readonly Held[] };

const firstOf = async (): Promise<First | null> => {
  try {
    const found = await fetch("first.json");
    return found.ok ? ((await found.json()) as First) : null;
  } catch {
    return null;
  }
};

/** Whether a request is about a run and nothing else that sizes it. */
const isOf = (request: Asked, run: object): boolean => {
  const { model, text, files, num_gpus, settings } = request as Record<string, unknown>;
  return JSON.stringify({ model, num_gpus, settings }) === JSON.stringify(run) && text === undefined && files === undefined;
};

/** The library itself, in workers of the page: one for quick questions, one for those that take long. */
export class WorkerEngine implements Engine {
  readonly live = true;
  readonly place = "stays in this tab";
  private readonly quick = new OneWorker();
  private readonly slow = new OneWorker();
  private first: Promise<First | null> | null = firstOf();

  constructor() {
    window.addEventListener("ready-engine", () => (this.first = null), { once: true });
  }

  async ask<T>(tool: Tool, request: Asked, asking: Asking = {}): Promise<T> {
    if (this.first) {
      this.quick.begin();
      const first = await this.first;
      if (asking.signal?.aborted) throw cancelled();
      const held = first && isOf(request, first.run) ? heldFor(first.documents, tool, request) : undefined;
      if (held) return held.answer as T;
    }
    const worker = SLOW.has(tool) ? this.slow : this.quick;
    return worker.ask(tool, whole(tool, request), asking) as Promise<T>;
  }
}

/** A document of a report; `also` are other moments that have the same tensors. */
type Held = { readonly tool: string; readonly arguments: Readonly<Record<string, unknown>>; readonly also?: readonly number[]; readonly answer?: unknown; readonly error?: string };

/** The document that answers a request, of those that are held of its run. */
const heldFor = (held: readonly Held[], tool: Tool, request: Asked): Held | undefined => {
  const asked = request as Record<string, unknown>;
  return held.find((one) => one.tool === tool && Object.entries(one.arguments).every(([name, value]) => (asked[name] ?? null) === value || (name === "moment" && (one.also ?? []).includes(asked[name] as number))));
};

/** The documents of a report: those of one run, or why there is none. */
export class FrozenEngine implements Engine {
  readonly live = false;
  readonly place = "";
  constructor(private readonly held: readonly Held[]) {}

  async ask<T>(tool: Tool, request: Asked): Promise<T> {
    const found = heldFor(this.held, tool, request);
    if (!found) throw new Refusal(`this report does not hold that; \`megatron-memory serve\` opens the page that answers it`);
    if (found.error !== undefined) throw new Refusal(found.error);
    return found.answer as T;
  }
}

const inflated = async (base64: string): Promise<string> => {
  const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Response(stream).text();
};

export type Frozen = { readonly address: string; readonly documents: readonly Held[] };

/** The documents that stand in the page itself, of a frozen report. */
export const frozen = async (): Promise<Frozen | null> => {
  const held = document.getElementById("frozen")?.textContent;
  return held ? (JSON.parse(await inflated(held.trim())) as Frozen) : null;
};

export const engineOf = (kind: string): Engine => (kind === "worker" ? new WorkerEngine() : new HttpEngine());
