// The JSON documents of the engine, as docs/reference/json.md describes them: what the page reads of them.

import type { Bounds, Change, Counts, Estimate, Plan as Planned, Settings, Stage, Tensor, Value } from "./quantities";

export type { Bounds, Estimate, Settings, Stage, Tensor, Value };

/** A run as requests name it. */
export type Run = {
  readonly model?: string;
  readonly text?: string;
  readonly num_gpus?: number;
  readonly settings: Settings;
};

type Column = readonly (number | null)[];

export type Shape = { readonly at: readonly number[]; readonly below_bytes: readonly number[] };

export type Lane = {
  readonly pp_rank: number;
  readonly steady_allocated_bytes: number;
  readonly peak_allocated_bytes: number;
  readonly peak_moment: number | null;
  readonly left_out: { readonly behind: number; readonly microbatches: number } | null;
  readonly shapes: readonly Shape[];
  readonly columns: Readonly<
    Record<
      | "index" | "event" | "start_s" | "end_s" | "start_bytes" | "highest_bytes" | "end_bytes" | "chunk" | "microbatch"
      | "beside_chunk" | "beside_microbatch" | "in_flight" | "label" | "shape",
      Column
    >
  >;
};

export type Lanes = {
  readonly gpu: string;
  readonly gpu_memory_bytes: number;
  readonly step_s: number;
  readonly timeline_s: number;
  readonly events: readonly string[];
  readonly labels: readonly string[];
  readonly stages: readonly Lane[];
};

export type Moment = {
  readonly pp_rank: number;
  readonly moment: number | null;
  readonly event: string;
  readonly allocated_bytes: number;
  readonly tensors: readonly Tensor[];
};

export type Choice = { readonly value: Value; readonly settings: Settings; readonly num_gpus: number | null; readonly refusal: string | null };
export type Choices = {
  readonly choices: Readonly<Record<string, { readonly value: Value; readonly values: readonly Choice[] }>>;
};

export type SettingFacts = {
  readonly name: string;
  readonly short: string | null;
  readonly topic: string;
  readonly kind: string;
  readonly choices: readonly string[] | null;
  readonly default: Value;
  readonly help: string;
};

export type ModelFacts = {
  readonly name: string;
  readonly model_type: string;
  readonly num_parameters: { readonly total: number; readonly active: number } | null;
  readonly refused: string | null;
};

/** What a plan or a change puts into the request that it was found for. */
type Following = { readonly settings: Settings; readonly num_gpus: number | null };

export type Advice = {
  readonly purpose: "fit" | "faster";
  readonly assumptions: readonly string[];
  readonly now: Change;
  readonly advice: readonly (Change & Following)[];
};

export type Plan = Planned & Following;

export type Plans = {
  readonly objective: string;
  readonly limit_bytes: number;
  readonly counts: Counts & { readonly ruled_out: Readonly<Record<string, number>> };
  readonly plans: readonly Plan[];
  readonly front: readonly { readonly peak_allocated_bytes: number; readonly tokens_per_s_gpu: number; readonly layout: string }[];
  readonly least: { readonly device_bytes: Bounds; readonly layout: string } | null;
  readonly assumptions: readonly string[];
  readonly warnings: readonly string[];
};

export type Launch = {
  readonly megatron_lm: string;
  readonly yaml: string;
  readonly bridge: string;
  readonly without_argument: Readonly<Record<string, unknown>>;
};

export type Compared = {
  readonly differs: readonly string[];
  readonly figures: Readonly<Record<string, readonly string[]>>;
  readonly cases: readonly ({ readonly label: string; readonly estimate: Estimate } | { readonly label: string; readonly refusal: string })[];
  readonly parts: readonly { readonly part: string; readonly bytes: readonly (number | null)[] }[];
  readonly tensors: readonly { readonly name: string; readonly part: string; readonly bytes: readonly (number | null)[] }[];
  readonly settings: readonly { readonly name: string; readonly values: readonly Value[] }[];
};
