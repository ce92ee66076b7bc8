// The whole state of the page, and how it stands in the address behind the #, which no server ever sees.
import type { Run, Settings, Value } from "./documents";

export type View = "estimate" | "plan" | "compare";

export type State = {
  readonly view: View;
  readonly run: Run;
  /** The name of the file that `run.text` is the content of. */
  readonly file?: string;
  readonly stage?: number;
  readonly moment?: number;
  /** The phase whose terms are open; else that which decides. */
  readonly phase?: string;
  readonly advice: boolean;
  readonly axes: Readonly<Record<string, string>>;
  readonly objective: string;
  readonly planned: boolean;
  readonly pins: readonly Pin[];
};

export type Pin = { readonly label: string; readonly run: Run };

export const EXAMPLE: Run = { model: "meta-llama/Llama-3.1-8B", num_gpus: 8, settings: { tensor_model_parallel_size: 2 } };
export const EMPTY: State = { view: "estimate", run: EXAMPLE, advice: false, axes: {}, objective: "throughput", planned: false, pins: [] };

/** Short names of settings, as on the command line; the page keeps the long ones. */
export const SHORT: Readonly<Record<string, string>> = {
  tp: "tensor_model_parallel_size", pp: "pipeline_model_parallel_size", vpp: "virtual_pipeline_model_parallel_size",
  cp: "context_parallel_size", ep: "expert_model_parallel_size", etp: "expert_tensor_parallel_size",
};

/** The setting that holds variables of a script, and words of its caller, by name. */
export const VARIABLES = "set_variables";
const VIEWS: readonly View[] = ["estimate", "plan", "compare"];
const LONGEST = 2 * 2 ** 20;

const toBase64 = (bytes: Uint8Array): string => {
  let letters = "";
  for (let at = 0; at < bytes.length; at += 8192) letters += String.fromCharCode(...bytes.subarray(at, at + 8192));
  return btoa(letters).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
};

/** What is said of letters that were cut off or changed on their way. */
const INCOMPLETE = "a part of it is missing or changed";

export const fromBase64 = (text: string): Uint8Array<ArrayBuffer> =>
  Uint8Array.from(atob(text.replaceAll("-", "+").replaceAll("_", "/")), (letter) => letter.charCodeAt(0));

export const packed = async (text: string): Promise<string> => {
  const stream = new Blob([text]).stream().pipeThrough(new CompressionStream("deflate-raw"));
  return toBase64(new Uint8Array(await new Response(stream).arrayBuffer()));
};

/** The text of packed letters; rejects where they are none, or are more than a request may hold. */
export const unpacked = async (letters: string): Promise<string> => {
  const bytes = await Promise.resolve(letters).then(fromBase64).catch(() => Promise.reject(new Error(INCOMPLETE)));
  const reader = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw")).getReader();
  const parts: Uint8Array<ArrayBuffer>[] = [];
  for (let size = 0; ; ) {
    const { done, value } = await reader.read().catch(() => Promise.reject(new Error(INCOMPLETE)));
    if (done) return new Blob(parts).text();
    size += value.length;
    if (size > LONGEST) throw new Error("the address holds more than a request may");
    parts.push(value as Uint8Array<ArrayBuffer>);
  }
};

/** `8`, `true`, `null` and lists as JSON, everything else as it is. */
const written = (value: Value): string => {
  const text = typeof value === "string" ? value : JSON.stringify(value);
  return typeof value === "string" && typeof read(text) !== "string" ? JSON.stringify(value) : text;
};

const read = (text: string): Value => {
  try {
    const value: unknown = JSON.parse(text);
    if (typeof value === "number" && !Number.isFinite(value)) return text;
    return typeof value === "object" && value !== null && !Array.isArray(value) ? text : (value as Value);
  } catch {
    return text;
  }
};

const whole = (text: string | null): number | undefined => (text !== null && /^-?\d{1,15}$/.test(text) ? Number(text) : undefined);

const isObject = (value: unknown): value is Record<string, unknown> => typeof value === "object" && value !== null && !Array.isArray(value);
const isRun = (value: unknown): value is Run =>
  isObject(value) && typeof (value["text"] ?? value["model"]) === "string" && ["number", "undefined"].includes(typeof value["num_gpus"]) && isObject(value["settings"]);

/** The pinned runs that a text says. Throws where it says none. */
const pinsOf = (text: string): readonly Pin[] => {
  const found: unknown = JSON.parse(text);
  if (!Array.isArray(found) || !found.every((one) => isObject(one) && typeof one["label"] === "string" && isRun(one["run"]))) throw new Error(INCOMPLETE);
  return found as Pin[];
};

/** The files that a text says, by path. Throws where it says none. */
const filesOf = (text: string): Readonly<Record<string, string>> => {
  const found: unknown = JSON.parse(text);
  if (!isObject(found) || !Object.values(found).every((one) => typeof one === "string")) throw new Error(INCOMPLETE);
  return found as Record<string, string>;
};

const given = <T extends object>(parts: { [K in keyof T]: T[K] | undefined }): T =>
  Object.fromEntries(Object.entries(parts).filter(([, value]) => value !== undefined)) as T;

/** The state as what stands behind the #. */
export const addressOf = async (state: State): Promise<string> => {
  const words = new URLSearchParams();
  const { run } = state;
  if (run.model !== undefined) words.set("model", run.model);
  if (run.text !== undefined) words.set("text", await packed(run.text));
  if (run.files !== undefined) words.set("files", await packed(JSON.stringify(run.files)));
  if (state.file) words.set("file", state.file);
  if (run.num_gpus !== undefined) words.set("num_gpus", String(run.num_gpus));
  for (const [name, value] of Object.entries(run.settings)) {
    if (name === VARIABLES) for (const [variable, word] of Object.entries(value as unknown as Record<string, string>)) words.set(`set.${variable}`, word);
    else words.set(`s.${name}`, written(value));
  }
  if (state.stage !== undefined) words.set("stage", String(state.stage));
  if (state.moment !== undefined) words.set("moment", String(state.moment));
  if (state.phase !== undefined) words.set("phase", state.phase);
  if (state.advice) words.set("advice", "1");
  for (const [name, value] of Object.entries(state.axes)) if (value) words.set(`axis.${name}`, value);
  if (state.objective !== EMPTY.objective) words.set("objective", state.objective);
  if (state.planned) words.set("planned", "1");
  if (state.pins.length) words.set("pins", await packed(JSON.stringify(state.pins)));
  return `#/${state.view}?${words.toString().replaceAll("%2F", "/").replaceAll("%2C", ",")}`;
};

/** The state of an address; null where there is none. Rejects where it cannot be read. */
export const stateOf = async (hash: string): Promise<State | null> => {
  const match = /^#\/(\w+)(?:\?(.*))?$/s.exec(hash);
  if (!match) return null;
  const words = new URLSearchParams(match[2] ?? "");
  const named = (start: string) => [...words].filter(([name]) => name.startsWith(start)).map(([name, text]) => [name.slice(start.length), text] as const);
  const settings: Record<string, Value> = Object.fromEntries(named("s.").map(([name, text]) => [Object.hasOwn(SHORT, name) ? SHORT[name] : name, read(text)]));
  const variables = Object.fromEntries(named("set."));
  if (Object.keys(variables).length) settings[VARIABLES] = variables as unknown as Value;
  const axes = Object.fromEntries(named("axis."));
  const text = words.get("text");
  const files = words.get("files");
  const gpus = words.get("num_gpus");
  if (gpus !== null && whole(gpus) === undefined) throw new Error(`num_gpus=${gpus} is no number of GPUs`);
  const pins = words.get("pins");
  const run = given<Run>({
    model: words.get("model") ?? undefined,
    text: text === null ? undefined : await unpacked(text),
    files: files === null ? undefined : filesOf(await unpacked(files)),
    num_gpus: whole(gpus),
    settings: settings as Settings,
  });
  return given<State>({
    view: VIEWS.find((view) => view === match[1]) ?? "estimate",
    run: run.model === undefined && run.text === undefined ? { ...EXAMPLE } : run,
    file: words.get("file") ?? undefined,
    stage: whole(words.get("stage")),
    moment: whole(words.get("moment")),
    phase: words.get("phase") ?? undefined,
    advice: words.get("advice") === "1",
    axes,
    objective: words.get("objective") ?? EMPTY.objective,
    planned: words.get("planned") === "1",
    pins: pins === null ? [] : pinsOf(await unpacked(pins)),
  });
};
