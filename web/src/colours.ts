// Colours that colour-blind readers tell apart on white and on black (Okabe and Ito); a hue means one thing everywhere.
export const PARTS = ["weights", "gradients", "optimizer", "activations", "transient", "pipeline", "workspace"] as const;

export const COLOURS: Readonly<Record<string, string>> = {
  weights: "#0072b2",
  gradients: "#e69f00",
  optimizer: "#009e73",
  activations: "#cc79a7",
  transient: "#56b4e9",
  pipeline: "#8c6bb1",
  workspace: "#8a6d3b",
};

/** What a stage does, in shades of slate: none of them is a category of memory. */
export const EVENTS: Readonly<Record<string, string>> = {
  forward: "#a9bccf",
  backward: "#54708c",
  "forward beside backward": "#2b4257",
  optimizer: "#b5a642",
};
export const OTHER = "#d0d4d9";

/** What torch has allocated in phases that have no categories, and what is outside torch, lighter and lighter. */
const WHOLE = "#3f6f9f";
const BESIDE = "#8da3bb";
const OUTSIDE: readonly (readonly [string, string])[] = [["NCCL", "#7f8790"], ["CUDA context", "#b4bac1"], ["CUDA libraries", "#c9ced4"], ["fragmentation", "#dde1e6"]];
const ENGINE = "#3b4a54";
/** Terms that are all of a trainer at once. */
const WHOLES = ["model state", "allocated between two steps", "weights and gradients"];
const SAME: Readonly<Record<string, string>> = { "reference weights": "weights", "forward without gradients": "activations", workspaces: "workspace" };

export const colourOf = (part: string): string => COLOURS[part] ?? OTHER;
export const eventColour = (event: string): string => EVENTS[event] ?? OTHER;

export const isEngine = (term: string): boolean => term.startsWith("engine");

/** The colour of a term of a phase: of its category, of the engine, or a grey of what is outside torch. */
export const termColour = (term: string, torch: boolean): string => {
  const known = COLOURS[SAME[term] ?? term];
  if (known) return known;
  if (isEngine(term)) return ENGINE;
  const outside = OUTSIDE.find(([start]) => term.startsWith(start));
  if (outside) return outside[1];
  return WHOLES.includes(term) ? WHOLE : torch ? BESIDE : "#98a0a9";
};

export const tone = (verdict: string): "good" | "maybe" | "bad" =>
  verdict === "fits" ? "good" : verdict.startsWith("does not") ? "bad" : "maybe";
