// The tools of the engine: what each is asked with and what it answers, made by scripts/docs_tools.py; not edited by hand.

import type * as of from "./quantities";

/** Tools that answer in short where the whole document is not asked for. */
export const SHORTENED: ReadonlySet<string> = new Set(["estimate", "plan", "advise", "explain", "compare", "models", "timeline"]);

export type Tools = {
  estimate: { readonly asked: { readonly detail?: string | null; readonly model?: string | null; readonly text?: string | object | null; readonly num_gpus?: number | null; readonly settings?: object | null }; readonly answer: of.Estimate };
  plan: { readonly asked: { readonly detail?: string | null; readonly model?: string | null; readonly text?: string | object | null; readonly num_gpus?: number | null; readonly settings?: object | null; readonly axes?: object | null; readonly objective?: string | null; readonly top?: number | null; readonly fewest_gpus?: boolean | null }; readonly answer: of.Plans };
  advise: { readonly asked: { readonly detail?: string | null; readonly model?: string | null; readonly text?: string | object | null; readonly num_gpus?: number | null; readonly settings?: object | null }; readonly answer: of.Advice };
  explain: { readonly asked: { readonly detail?: string | null; readonly model?: string | null; readonly text?: string | object | null; readonly num_gpus?: number | null; readonly settings?: object | null; readonly stage?: number | null; readonly at?: string | null }; readonly answer: of.Explanation };
  compare: { readonly asked: { readonly detail?: string | null; readonly models?: readonly string[] | null; readonly layouts?: readonly object[] | null; readonly num_gpus?: number | null; readonly settings?: object | null; readonly cases?: readonly object[] | null }; readonly answer: of.Comparison };
  card: { readonly asked: { readonly detail?: string | null; readonly model?: string | null; readonly settings?: object | null }; readonly answer: of.Card };
  models: { readonly asked: { readonly detail?: string | null; readonly model?: string | null }; readonly answer: readonly of.ModelFacts[] | of.ModelFacts };
  timeline: { readonly asked: { readonly detail?: string | null; readonly model?: string | null; readonly text?: string | object | null; readonly num_gpus?: number | null; readonly settings?: object | null; readonly stage?: number | null }; readonly answer: of.Timeline };
  check: { readonly asked: { readonly detail?: string | null; readonly model?: string | null; readonly text?: string | object | null; readonly num_gpus?: number | null; readonly settings?: object | null; readonly baseline?: object | null; readonly tolerance?: string | null }; readonly answer: of.Check };
  validate: { readonly asked: { readonly detail?: string | null; readonly model?: string | null; readonly text?: string | object | null; readonly num_gpus?: number | null; readonly settings?: object | null; readonly log?: string | null }; readonly answer: of.Log };
  why: { readonly asked: { readonly detail?: string | null; readonly model?: string | null; readonly text?: string | object | null; readonly num_gpus?: number | null; readonly settings?: object | null; readonly measured?: string | null; readonly kind?: string | null }; readonly answer: of.Why };
  snapshot: { readonly asked: { readonly detail?: string | null; readonly model?: string | null; readonly text?: string | object | null; readonly num_gpus?: number | null; readonly settings?: object | null; readonly snapshot?: string | null }; readonly answer: of.Snapshot };
  largest: { readonly asked: { readonly detail?: string | null; readonly model?: string | null; readonly text?: string | object | null; readonly num_gpus?: number | null; readonly settings?: object | null; readonly setting?: string | null }; readonly answer: of.Largest };
  lengths: { readonly asked: { readonly detail?: string | null; readonly model?: string | null; readonly text?: string | object | null; readonly num_gpus?: number | null; readonly settings?: object | null; readonly lengths?: string | null }; readonly answer: of.Lengths };
  lanes: { readonly asked: { readonly detail?: string | null; readonly model?: string | null; readonly text?: string | object | null; readonly num_gpus?: number | null; readonly settings?: object | null }; readonly answer: of.Lanes };
  moment: { readonly asked: { readonly detail?: string | null; readonly model?: string | null; readonly text?: string | object | null; readonly num_gpus?: number | null; readonly settings?: object | null; readonly stage?: number | null; readonly moment?: number | null }; readonly answer: of.Moment };
  choices: { readonly asked: { readonly detail?: string | null; readonly model?: string | null; readonly text?: string | object | null; readonly num_gpus?: number | null; readonly settings?: object | null; readonly names?: readonly string[] | null }; readonly answer: of.Choices };
  launch: { readonly asked: { readonly detail?: string | null; readonly model?: string | null; readonly text?: string | object | null; readonly num_gpus?: number | null; readonly settings?: object | null }; readonly answer: of.Launch };
  export: { readonly asked: { readonly detail?: string | null; readonly models?: readonly string[] | null; readonly layouts?: readonly object[] | null; readonly num_gpus?: number | null; readonly settings?: object | null; readonly cases?: readonly object[] | null; readonly model?: string | null; readonly text?: string | object | null; readonly axes?: object | null; readonly objective?: string | null; readonly top?: number | null; readonly fewest_gpus?: boolean | null; readonly what?: string | null; readonly format?: string | null; readonly stage?: number | null; readonly moment?: number | null; readonly at?: string | null }; readonly answer: of.Export };
  gpus: { readonly asked: { readonly detail?: string | null; readonly gpu?: string | null }; readonly answer: readonly of.GpuFacts[] | of.GpuFacts };
  settings: { readonly asked: { readonly detail?: string | null }; readonly answer: of.SettingCatalogue };
};

export type Tool = keyof Tools;
export type Asked = Tools[Tool]["asked"];
