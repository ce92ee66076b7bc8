// The JSON documents of the engine, as docs/reference/json.md describes them: what the page reads of them.

export type Value = string | number | boolean | null | readonly (string | number | boolean)[];
export type Settings = Readonly<Record<string, Value>>;
export type Bounds = { readonly low: number; readonly high: number };

/** A run as requests name it. */
export type Run = {
  readonly model?: string;
  readonly text?: string;
  readonly num_gpus?: number;
  readonly settings: Settings;
};

export type Verdict = {
  readonly gpu: string;
  readonly memory_bytes: number;
  readonly verdict: string;
  readonly phase: string;
  readonly pp_rank: number;
  readonly device_bytes: Bounds;
  readonly head_room_bytes: Bounds;
  readonly sentence?: string;
};

export type Stage = {
  readonly pp_rank: number;
  readonly chunks: readonly {
    readonly layers: readonly number[];
    readonly embedding: boolean;
    readonly output: boolean;
    readonly mtp: boolean;
  }[];
  readonly in_flight: number;
  readonly num_parameters: { readonly dense: number; readonly expert: number };
  readonly steady_allocated_bytes: number;
  readonly first_step_peak_allocated_bytes: number;
  readonly peak_allocated_bytes: number;
  readonly peak_event: string;
  readonly breakdown_bytes: Readonly<Record<string, number>>;
  readonly reserved_bytes: Bounds;
  readonly device_bytes: Bounds;
  readonly device_bytes_of_phases: Readonly<Record<string, Bounds>>;
};

export type Estimate = {
  readonly schema: string;
  readonly model: {
    readonly name: string;
    readonly source: string;
    readonly num_parameters: { readonly total: number; readonly active: number; readonly mtp: number };
  };
  readonly layout: Readonly<Record<string, Value>>;
  readonly training: Readonly<Record<string, unknown>>;
  readonly stages: readonly Stage[];
  readonly peak: { readonly pp_rank: number; readonly allocated_bytes: number; readonly device_bytes: Bounds };
  readonly verdict: Verdict;
  readonly gpus: readonly { readonly name: string; readonly memory_bytes: number; readonly verdict: string }[];
  readonly assumptions: readonly string[];
  readonly warnings: readonly string[];
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

export type Tensor = {
  readonly part: string;
  readonly name: string;
  readonly shape: string;
  readonly local_shape: readonly number[];
  readonly dtype: string;
  readonly count: number;
  readonly bytes: number;
  readonly why: string;
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

type Figures = {
  readonly peak_allocated_bytes: number;
  readonly device_bytes: Bounds;
  readonly verdict: string;
  readonly step_s: number | null;
};

export type Advice = {
  readonly purpose: "fit" | "faster";
  readonly assumptions: readonly string[];
  readonly now: Figures;
  readonly advice: readonly (Figures & {
    readonly settings: Settings;
    readonly num_gpus: number | null;
    readonly changes: readonly { readonly name: string; readonly note?: string }[];
    readonly saved_bytes: number;
    readonly cost: number | null;
  })[];
};

export type Plan = {
  readonly layout: Readonly<Record<string, Value>>;
  readonly settings: Settings;
  readonly num_gpus?: number | null;
  readonly micro_batch_size: number;
  readonly global_batch_size: number;
  readonly recompute: string;
  readonly precision: string;
  readonly step_s: number;
  readonly tokens_per_s_gpu: number;
  readonly mfu: number;
  readonly bubble: number;
  readonly limited_by: string;
  readonly peak_allocated_bytes: number;
  readonly peak_stage: number;
  readonly verdict: string;
  readonly device_bytes: Bounds;
  readonly head_room_bytes: Bounds;
  readonly launch: {
    readonly megatron_lm: readonly string[];
    readonly settings_without_argument: Readonly<Record<string, unknown>>;
    readonly bridge_overrides: readonly string[];
  };
};

export type Plans = {
  readonly objective: string;
  readonly limit_bytes: number;
  readonly counts: Readonly<Record<"examined" | "legal" | "fits" | "tight" | "too_large", number>> & {
    readonly ruled_out: Readonly<Record<string, number>>;
  };
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
