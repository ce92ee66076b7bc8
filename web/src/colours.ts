// Colours that colour-blind readers tell apart on white and on black (Okabe and Ito); the sheet of styles has the same as classes.
export const PARTS = ["weights", "gradients", "optimizer", "activations", "transient", "pipeline", "workspace"] as const;

export const COLOURS: Readonly<Record<string, string>> = {
  weights: "#0072b2",
  gradients: "#e69f00",
  optimizer: "#009e73",
  activations: "#cc79a7",
  transient: "#56b4e9",
  pipeline: "#8c6bb1",
  workspace: "#999999",
};

export const EVENTS: Readonly<Record<string, string>> = {
  forward: "#56b4e9",
  backward: "#d55e00",
  "forward beside backward": "#cc79a7",
  optimizer: "#009e73",
};
export const OTHER = "#999999";

export const colourOf = (part: string): string => COLOURS[part] ?? OTHER;
export const eventColour = (event: string): string => EVENTS[event] ?? OTHER;

export const tone = (verdict: string): "good" | "maybe" | "bad" =>
  verdict === "fits" ? "good" : verdict.startsWith("does not") ? "bad" : "maybe";
