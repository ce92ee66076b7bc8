// The documents of the engine as the page reads them, and a run as requests name it.

import type * as of from "./quantities";

export type {
  Bounds, Case, Choice, Choices, Comparison as Compared, Estimate, Event, Lane, LaneShape as Shape, Lanes, Launch, Log, ModelFacts, Moment, SettingFacts, Settings, Snapshot, SnapshotLeft,
  Speed, Stage, Tensor, Term, Value, Why,
} from "./quantities";

/** A run as requests name it. */
export type Run = {
  readonly model?: string;
  readonly text?: string;
  /** Files that came together, their texts by path: `model` is the path of the run among them. */
  readonly files?: Readonly<Record<string, string>>;
  readonly num_gpus?: number;
  readonly settings: of.Settings;
};

/** What a plan or a change puts into the request that it was found for. */
type Following = { readonly settings: of.Settings; readonly num_gpus: number | null };

export type Plan = of.Plan & Following;
export type Plans = Omit<of.Plans, "plans"> & { readonly plans: readonly Plan[] };
export type Advice = Omit<of.Advice, "advice"> & { readonly advice: readonly (of.Change & Following)[] };
