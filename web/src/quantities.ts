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
  readonly device_used_bytes: Bounds;
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
  readonly events: readonly Event[];
  readonly not_counted: string | null;
};

export type Event = {
  readonly phase: string;
  readonly verdict: string;
  readonly pp_rank: number;
  readonly device_bytes: Bounds;
  readonly head_room_bytes: Bounds;
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
  readonly phases: readonly PhaseTerms[];
  readonly gpus: readonly OnGpu[];
  readonly conversion: readonly Term[];
  readonly assumptions: readonly string[];
  readonly warnings: readonly string[];
  readonly uncounted: readonly Uncounted[];
  readonly bound: string;
};

export type PhaseTerms = {
  readonly phase: string;
  readonly pp_rank: number;
  readonly terms: readonly Term[];
};

export type Uncounted = {
  readonly argument: string;
  readonly sign: string;
  readonly whose: string;
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
  readonly sentences: readonly Said[];
};

export type Said = {
  readonly text: string;
  readonly verdict: string;
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
  readonly features: readonly string[];
  readonly numerics: readonly string[];
  readonly use_distributed_optimizer: boolean;
  readonly use_precision_aware_optimizer: boolean;
  readonly optimizer_offload_fraction: number;
  readonly step_s: number;
  readonly tokens_per_s_gpu: number;
  readonly tokens_per_s_gpu_low: number;
  readonly tokens_per_s_gpu_high: number;
  readonly tflops_gpu: number;
  readonly mfu: number;
  readonly bubble: number;
  readonly exposed: number;
  readonly parts_s: Readonly<Record<string, number>>;
  readonly limited_by: string;
  readonly beside_first: string;
  readonly whole_run: WholeRun | null;
  readonly peak_allocated_bytes: number;
  readonly peak_stage: number;
  readonly device_bytes: Bounds;
  readonly head_room_bytes: Bounds;
  readonly verdict: string;
  readonly phase: string;
  readonly not_counted: string | null;
  readonly peak_of_stages_bytes: readonly number[];
  readonly launch: PlanLaunch;
};

export type WholeRun = {
  readonly tokens_per_s: number;
  readonly goodput: number | null;
  readonly save_interval: number | null;
  readonly save_s: number | null;
  readonly checkpoint_bytes: number | null;
  readonly failures_per_day: Value | null;
  readonly tokens_per_dollar: number | null;
  readonly days: Value | null;
  readonly dollars: Value | null;
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
  readonly too_large: number;
  readonly evaluated: number;
  readonly fits: number;
  readonly tight: number;
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

export type Explanation = {
  readonly schema: string;
  readonly pp_rank: number;
  readonly at: string;
  readonly event: string;
  readonly allocated_bytes: number;
  readonly tensors: readonly Tensor[];
  readonly owned: readonly Owned[];
};

export type Owned = {
  readonly chunk: number;
  readonly group: string;
  readonly data_parallel_rank: number;
  readonly parameters: Settings;
};

export type Moment = {
  readonly schema: string;
  readonly pp_rank: number;
  readonly moment: number;
  readonly event: string;
  readonly allocated_bytes: number;
  readonly tensors: readonly Tensor[];
};

export type Timeline = {
  readonly schema: string;
  readonly sentence: string;
  readonly model: string;
  readonly pp_rank: number;
  readonly gpu: string;
  readonly gpu_memory_bytes: number;
  readonly steady_allocated_bytes: number;
  readonly peak_allocated_bytes: number;
  readonly peak_event: string;
  readonly step_s: number;
  readonly timeline_s: number;
  readonly left_out: LeftOut | null;
  readonly moments: readonly MomentRow[];
};

export type LeftOut = {
  readonly behind: number;
  readonly moments: number;
  readonly microbatches: number;
  readonly repeats: number;
};

export type MomentRow = {
  readonly index: number | null;
  readonly event: string;
  readonly chunk: number | null;
  readonly microbatch: number | null;
  readonly beside_chunk: number | null;
  readonly beside_microbatch: number | null;
  readonly in_flight: number;
  readonly start_s: number | null;
  readonly end_s: number | null;
  readonly start_bytes: number;
  readonly highest_bytes: number;
  readonly end_bytes: number;
  readonly weights_bytes: number;
  readonly gradients_bytes: number;
  readonly optimizer_bytes: number;
  readonly activations_bytes: number;
  readonly transient_bytes: number;
  readonly pipeline_bytes: number;
  readonly workspace_bytes: number;
  readonly highest_event: string;
};

export type Lanes = {
  readonly schema: string;
  readonly gpu: string;
  readonly gpu_memory_bytes: number;
  readonly step_s: number;
  readonly speed: Speed;
  readonly timeline_s: number;
  readonly events: readonly string[];
  readonly labels: readonly string[];
  readonly stages: readonly Lane[];
};

export type Speed = {
  readonly step_s: number;
  readonly samples: number;
  readonly tokens_per_s_gpu: number;
  readonly tokens_per_s_gpu_low: number;
  readonly tokens_per_s_gpu_high: number;
  readonly tflops_gpu: number;
  readonly mfu: number;
  readonly bubble: number;
  readonly exposed: number;
  readonly parts_s: Readonly<Record<string, number>>;
  readonly limited_by: string;
};

export type Lane = {
  readonly pp_rank: number;
  readonly steady_allocated_bytes: number;
  readonly peak_allocated_bytes: number;
  readonly peak_moment: number | null;
  readonly left_out: LeftOut | null;
  readonly shapes: readonly LaneShape[];
  readonly columns: LaneColumns;
};

export type LaneShape = {
  readonly at: readonly number[];
  readonly below_bytes: readonly number[];
};

export type LaneColumns = {
  readonly index: readonly (number | null)[];
  readonly event: readonly (number | null)[];
  readonly start_s: readonly (number | null)[];
  readonly end_s: readonly (number | null)[];
  readonly start_bytes: readonly (number | null)[];
  readonly highest_bytes: readonly (number | null)[];
  readonly end_bytes: readonly (number | null)[];
  readonly chunk: readonly (number | null)[];
  readonly microbatch: readonly (number | null)[];
  readonly beside_chunk: readonly (number | null)[];
  readonly beside_microbatch: readonly (number | null)[];
  readonly in_flight: readonly (number | null)[];
  readonly shape: readonly (number | null)[];
  readonly label: readonly (number | null)[];
};

export type Advice = {
  readonly schema: string;
  readonly limit_bytes: number;
  readonly assumptions: readonly string[];
  readonly now: Change & PeakStage;
  readonly purpose: string;
  readonly without_layout: boolean;
  readonly sentence: string;
  readonly advice: readonly Change[];
};

export type PeakStage = {
  readonly peak_stage: number;
};

export type Card = {
  readonly schema: string;
  readonly model: string;
  readonly num_parameters: ModelParameters;
  readonly state_bytes: Readonly<Record<string, number>>;
  readonly tried: Settings;
  readonly gpus: readonly Fewest[];
  readonly lacking: readonly string[];
  readonly not_counted: string | null;
  readonly assumptions: readonly string[];
};

export type Fewest = {
  readonly gpu: string;
  readonly fewest_to_train: number | null;
  readonly fewest_gpus: number | null;
  readonly layout: string;
  readonly settings: Settings;
};

export type Plans = {
  readonly schema: string;
  readonly sentence: string;
  readonly objective: string;
  readonly limit_bytes: number;
  readonly interrupted: boolean;
  readonly judged: string;
  readonly fewest_gpus: number | null;
  readonly fewest_gpus_to_train: number | null;
  readonly space: Settings;
  readonly counts: Counts & RuledOut;
  readonly plans: readonly Plan[];
  readonly tight_plans: readonly TightPlan[];
  readonly state_bytes: number | null;
  readonly least: LeastPlan | null;
  readonly own: OwnPlan | null;
  readonly feature_worth: readonly Worth[];
  readonly features_that_pay: readonly Worth[];
  readonly assumptions: readonly string[];
  readonly warnings: readonly string[];
};

export type RuledOut = {
  readonly ruled_out: Readonly<Record<string, number>>;
};

export type Worth = {
  readonly feature: string;
  readonly says: string;
  readonly saves: number;
  readonly takes_bytes: number;
  readonly numerics: string;
  readonly settings: Settings;
  readonly source: string;
};

export type TightPlan = {
  readonly peak_allocated_bytes: number;
  readonly tokens_per_s_gpu: number;
  readonly layout: string;
  readonly device_bytes: Bounds;
  readonly verdict: string;
};

export type OwnPlan = {
  readonly sentence: string;
  readonly layout: string;
  readonly tokens_per_s_gpu: number;
  readonly step_s: number;
  readonly peak_allocated_bytes: number;
  readonly device_bytes: Bounds;
  readonly verdict: string;
  readonly left_out: readonly string[];
};

export type LeastPlan = {
  readonly device_bytes: Bounds;
  readonly layout: string;
};

export type Comparison = {
  readonly schema: string;
  readonly cases: readonly Case[];
  readonly answers: readonly string[];
  readonly changes: readonly string[];
  readonly differs: readonly string[];
  readonly figures: Readonly<Record<string, readonly string[]>>;
  readonly settings: readonly SettingValues[];
  readonly parts: readonly PartBytes[];
  readonly tensors: readonly TensorBytes[];
  readonly other_tensors: OtherTensors;
};

export type Case = {
  readonly label: string;
  readonly estimate: Estimate | null;
  readonly refusal: string | null;
};

export type SettingValues = {
  readonly name: string;
  readonly values: readonly Value[];
};

export type PartBytes = {
  readonly part: string;
  readonly bytes: readonly (number | null)[];
};

export type TensorBytes = {
  readonly part: string;
  readonly name: string;
  readonly bytes: readonly (number | null)[];
  readonly difference: number;
};

export type OtherTensors = {
  readonly count: number;
  readonly bytes: readonly (number | null)[];
};

export type Choices = {
  readonly schema: string;
  readonly choices: Readonly<Record<string, ChoiceOf>>;
};

export type ChoiceOf = {
  readonly value: Value;
  readonly values: readonly Choice[];
};

export type Choice = {
  readonly value: Value;
  readonly settings: Settings;
  readonly num_gpus: number | null;
  readonly refusal: string | null;
};

export type Launch = {
  readonly megatron_lm: string;
  readonly yaml: string;
  readonly bridge: string;
  readonly without_argument: Settings;
};

export type Export = {
  readonly name: string;
  readonly text: string;
  readonly encoding: string;
};

export type ModelFacts = {
  readonly name: string;
  readonly source: string;
  readonly model_type: string;
  readonly num_parameters: ModelParameters | null;
  readonly refused: string | null;
  readonly not_counted: string | null;
};

export type GpuFacts = {
  readonly name: string;
  readonly memory_bytes: number;
  readonly aliases: readonly string[];
  readonly source: string;
};

export type SettingCatalogue = {
  readonly schema: string;
  readonly topics: readonly string[];
  readonly settings: readonly SettingFacts[];
};

export type SettingFacts = {
  readonly name: string;
  readonly short: string | null;
  readonly topic: string;
  readonly kind: string;
  readonly default: Value;
  readonly unit: string | null;
  readonly help: string;
  readonly choices: readonly string[];
  readonly words: Readonly<Record<string, number>>;
  readonly null: boolean;
};

export type Check = {
  readonly schema: string;
  readonly exit_code: number;
  readonly verdict: string;
  readonly reason: string;
  readonly warnings: readonly string[];
  readonly increase: Increase | null;
  readonly stages: readonly TopOfStage[];
};

export type Increase = {
  readonly pp_rank: number;
  readonly before: number;
  readonly now: number;
  readonly share: number;
};

export type TopOfStage = {
  readonly pp_rank: number;
  readonly peak_allocated_bytes: number;
  readonly device_bytes: Bounds;
};

export type Log = {
  readonly schema: string;
  readonly sentence: string;
  readonly ranks: readonly LogRank[];
  readonly figures: readonly LogFigure[];
  readonly layers: readonly LogLayer[];
  readonly ran_out: readonly LogOom[];
};

export type LogFigure = {
  readonly source: string;
  readonly quantity: string;
  readonly peak: boolean;
  readonly of: string;
  readonly iteration: number | null;
  readonly measured_bytes: number;
  readonly pp_rank: number;
  readonly expected_bytes: Bounds | null;
  readonly more_bytes: number;
};

export type LogLayer = {
  readonly number: number;
  readonly kind: string;
  readonly pp_rank: number;
  readonly retained_bytes: Readonly<Record<string, number>>;
  readonly more_bytes: number;
};

export type LogOom = {
  readonly rank: string;
  readonly pp_rank: number;
  readonly asked_bytes: number;
  readonly allocated_bytes: number;
  readonly unallocated_bytes: number;
  readonly outside_bytes: number;
  readonly others_bytes: number;
  readonly private_bytes: number;
  readonly capacity_bytes: number;
  readonly expected_bytes: number;
};

export type LogRank = {
  readonly rank: number;
  readonly pp_rank: number;
  readonly iteration: number;
  readonly figure: string;
  readonly allocated_bytes: Readonly<Record<string, number>>;
  readonly max_allocated_bytes: Readonly<Record<string, number>>;
};

export type Largest = {
  readonly schema: string;
  readonly sentence: string;
  readonly setting: string;
  readonly given: number;
  readonly sure: number;
  readonly possible: number;
  readonly step: number;
  readonly decides: Event | null;
  readonly refusal: string;
  readonly assumptions: readonly string[];
  readonly warnings: readonly string[];
};

export type Lengths = {
  readonly schema: string;
  readonly sentence: string;
  readonly packing: string;
  readonly bound: number;
  readonly worst: number;
  readonly samples: number;
  readonly mean: number;
  readonly longest: number;
  readonly share_longer: number;
  readonly microbatch: number;
  readonly needs: Event | null;
  readonly fits: number;
  readonly breaks_at: number | null;
  readonly share_of_steps: number;
  readonly half_by_step: number | null;
  readonly assumptions: readonly string[];
  readonly warnings: readonly string[];
};

export type Snapshot = {
  readonly schema: string;
  readonly sentence: string;
  readonly device: number;
  readonly moment: string;
  readonly requested_bytes: number;
  readonly peak_requested_bytes: number;
  readonly requested_at_start_bytes: number;
  readonly whole: boolean;
  readonly events: number;
  readonly reserved_bytes: number;
  readonly allocated_bytes: number;
  readonly pending_bytes: number;
  readonly largest_hole_bytes: number;
  readonly parts: Readonly<Record<string, number>>;
  readonly named: number;
  readonly groups: readonly SnapshotGroup[];
  readonly pools: readonly SnapshotPool[];
  readonly steps: readonly SnapshotStep[];
  readonly grown: readonly SnapshotGroup[];
  readonly piled: readonly SnapshotGroup[];
  readonly in_the_way: readonly SnapshotGroup[];
  readonly oom: SnapshotOom | null;
  readonly notes: readonly string[];
  readonly beside: SnapshotBeside | null;
};

export type SnapshotBeside = {
  readonly sentence: string;
  readonly pp_rank: number;
  readonly moment: string;
  readonly predicted_bytes: number;
  readonly agreed_bytes: number;
  readonly explained: number;
  readonly only_seen: readonly SnapshotLeft[];
  readonly only_predicted: readonly SnapshotLeft[];
  readonly hints: readonly string[];
  readonly settings: Settings;
};

export type SnapshotLeft = {
  readonly part: string;
  readonly tensor: string;
  readonly where: string;
  readonly blocks: number;
  readonly bytes: number;
};

export type SnapshotGroup = {
  readonly part: string;
  readonly tensor: string;
  readonly blocks: number;
  readonly bytes: number;
  readonly largest_bytes: number;
  readonly file: string;
  readonly line: number;
  readonly function: string;
};

export type SnapshotPool = {
  readonly pool: readonly number[];
  readonly stream: number;
  readonly kind: string;
  readonly reserved_bytes: number;
  readonly allocated_bytes: number;
  readonly largest_hole_bytes: number;
};

export type SnapshotStep = {
  readonly peak_bytes: number;
  readonly end_bytes: number;
};

export type SnapshotOom = {
  readonly asked_bytes: number;
  readonly free_bytes: number;
  readonly unused_bytes: number;
  readonly largest_hole_bytes: number;
  readonly private_bytes: number;
  readonly missing_bytes: number;
  readonly fragmented: boolean;
};

export type Why = {
  readonly schema: string;
  readonly sentence: string;
  readonly measured_bytes: number;
  readonly kind: string;
  readonly pp_rank: number;
  readonly expected_bytes: Bounds;
  readonly more_bytes: number;
  readonly others: readonly string[];
  readonly causes: readonly WhyCause[];
  readonly tokens: number | null;
};

export type WhyCause = {
  readonly says: string;
  readonly figure_bytes: Bounds;
  readonly check: string;
};
