// The figures of the engine's documents, made by scripts/docs_quantities.py from quantities.csv; not edited by hand.

export type Value = string | number | boolean | null | readonly (string | number | boolean)[];
export type Settings = Readonly<Record<string, Value>>;
export type Bounds = { readonly low: number; readonly high: number };

export type Stage = {
  readonly pp_rank: number;
  readonly chunks: readonly Chunk[];
  readonly ddp_buffers: readonly Buffer[];
  readonly num_parameters: Parameters;
  readonly in_flight: number;
  readonly breakdown_bytes: Readonly<Record<string, number>>;
  readonly steady_allocated_bytes: number;
  readonly first_step_peak_allocated_bytes: number;
  readonly peak_allocated_bytes: number;
  readonly peak_event: string;
  readonly reserved_bytes: Bounds;
  readonly device_bytes: Bounds;
  readonly device_bytes_of_phases: Readonly<Record<string, Bounds>>;
  readonly device_terms: readonly Term[];
  readonly phases: readonly Term[];
  readonly rollout: readonly Rollout[];
  readonly host_bytes: Bounds;
  readonly host_bytes_per_node: Bounds;
  readonly host_terms: readonly Term[];
};

export type Chunk = {
  readonly vp_stage: number;
  readonly layers: readonly number[];
  readonly embedding: boolean;
  readonly output: boolean;
  readonly mtp: boolean;
  readonly saved_bytes: number;
  readonly max_in_flight: number;
};

export type Buffer = {
  readonly chunk: number;
  readonly group: string;
  readonly param_dtype: string;
  readonly grad_dtype: string;
  readonly numel: number;
  readonly numel_unpadded: number;
};

export type Parameters = {
  readonly dense: number;
  readonly expert: number;
};

export type Term = {
  readonly name: string;
  readonly low: number;
  readonly high: number;
  readonly source: string;
};

export type Rollout = {
  readonly name: string;
  readonly terms: readonly Term[];
};

export type Verdict = {
  readonly gpu: string;
  readonly memory_bytes: number;
  readonly verdict: string;
  readonly phase: string;
  readonly pp_rank: number;
  readonly device_bytes: Bounds;
  readonly head_room_bytes: Bounds;
  readonly not_counted: string | null;
};

export type Estimate = {
  readonly schema: string;
  readonly model: Model;
  readonly layout: Settings;
  readonly training: Settings;
  readonly stages: readonly Stage[];
  readonly peak: Top;
  readonly routing: Routing | null;
  readonly verdict: Verdict & Sentence;
  readonly gpus: readonly OnGpu[];
  readonly assumptions: readonly string[];
  readonly warnings: readonly string[];
};

export type Model = {
  readonly name: string;
  readonly source: string;
  readonly model_type: string;
  readonly num_parameters: ModelParameters;
  readonly config: Settings;
};

export type ModelParameters = {
  readonly total: number;
  readonly active: number;
  readonly mtp: number;
};

export type Top = {
  readonly pp_rank: number;
  readonly allocated_bytes: number;
  readonly device_bytes: Bounds;
};

export type Routing = {
  readonly phase: string;
  readonly router_imbalance: Readonly<Record<string, number>>;
  readonly peak_allocated_bytes: Readonly<Record<string, number>>;
};

export type Sentence = {
  readonly sentence: string;
};

export type OnGpu = {
  readonly name: string;
  readonly memory_bytes: number;
  readonly verdict: string;
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

export type PlanLayout = {
  readonly num_gpus: number;
  readonly tensor_model_parallel_size: number;
  readonly context_parallel_size: number;
  readonly cp_comm_type: readonly string[];
  readonly pipeline_model_parallel_size: number;
  readonly virtual_pipeline_model_parallel_size: number;
  readonly split: string;
  readonly expert_model_parallel_size: number;
  readonly expert_tensor_parallel_size: number;
  readonly sequence_parallel: boolean;
  readonly data_parallel_size: number;
};

export type Plan = {
  readonly layout: PlanLayout;
  readonly settings: Settings;
  readonly micro_batch_size: number;
  readonly global_batch_size: number;
  readonly num_microbatches: number;
  readonly recompute: string;
  readonly precision: string;
  readonly use_distributed_optimizer: boolean;
  readonly use_precision_aware_optimizer: boolean;
  readonly optimizer_offload_fraction: number;
  readonly step_s: number;
  readonly tokens_per_s_gpu: number;
  readonly tflops_gpu: number;
  readonly mfu: number;
  readonly bubble: number;
  readonly exposed: number;
  readonly parts_s: Readonly<Record<string, number>>;
  readonly limited_by: string;
  readonly peak_allocated_bytes: number;
  readonly peak_stage: number;
  readonly device_bytes: Bounds;
  readonly head_room_bytes: Bounds;
  readonly verdict: string;
  readonly phase: string;
  readonly not_counted: string | null;
  readonly peak_of_stages_bytes: readonly number[];
  readonly alike: number;
  readonly launch: PlanLaunch;
};

export type PlanLaunch = {
  readonly megatron_lm: readonly string[];
  readonly settings_without_argument: Settings;
  readonly bridge_overrides: readonly string[];
  readonly bridge: Settings;
  readonly environment: Settings;
};

export type Counts = {
  readonly examined: number;
  readonly legal: number;
  readonly fits: number;
  readonly tight: number;
  readonly too_large: number;
};

export type Change = {
  readonly changes: readonly OneChange[];
  readonly peak_allocated_bytes: number;
  readonly saved_bytes: number;
  readonly device_bytes: Bounds;
  readonly head_room_bytes: Bounds;
  readonly verdict: string;
  readonly phase: string;
  readonly not_counted: string | null;
  readonly step_s: number;
  readonly tokens_per_s_gpu: number;
  readonly cost: number;
  readonly changes_numerics: boolean;
};

export type OneChange = {
  readonly name: string;
  readonly settings: Settings;
  readonly note: string | null;
};
