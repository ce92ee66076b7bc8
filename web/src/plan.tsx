// Plans: what is searched, how far the search is, memory against speed, and the best as a table.
import { useEffect, useRef, useState } from "preact/hooks";
import { asked } from "./asking";
import { tone } from "./colours";
import { pinned } from "./compare";
import { changed, nameOf, requestOf, usePage, without } from "./context";
import { RunFields } from "./controls";
import type { Plan, Plans, Run } from "./documents";
import { type Progress, isCancelled, sentence } from "./engine";
import type { Asked } from "./tools";
import { copy } from "./exports";
import { count, counted, gib, percent, seconds } from "./figures";
import { Linked } from "./term";
import { Scatter } from "./scatter";
import { Source } from "./source";
import { save } from "./save";
import { type Column, Table } from "./table";
import { worded } from "./words";

const AXES = [
  ["num_gpus", "GPUs", "64 or 32,64"], ["tensor_model_parallel_size", "tp", "1-8"], ["pipeline_model_parallel_size", "pp", "1,2,4"],
  ["virtual_pipeline_model_parallel_size", "vpp", "1,2"], ["context_parallel_size", "cp", "1"], ["expert_model_parallel_size", "ep", "8"],
  ["expert_tensor_parallel_size", "etp", "1"], ["micro_batch_size", "micro batch", "1,2"], ["recompute", "recompute", "none,full"],
  ["split", "split", "even"], ["precision", "precision", "bf16"], ["features", "features", "published"],
] as const;
/** Settings that say what the axes search: recomputation, and how layers are split. */
const SEARCHED = [
  "recompute_granularity", "recompute_method", "recompute_num_layers", "recompute_modules",
  "num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage", "pipeline_model_parallel_layout", "num_layers_per_virtual_pipeline_stage",
  "account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split", "microbatch_group_size_per_vp_stage", "hierarchical_context_parallel_sizes",
];
/** What a search is about: the run without what the search decides. */
export const searched = (run: Run): Run => without(run, [...AXES.map(([name]) => name), ...SEARCHED]);
const OBJECTIVES = ["throughput", "memory", "head-room"];
const TOP = 50;

type Degree = "tensor_model_parallel_size" | "pipeline_model_parallel_size" | "virtual_pipeline_model_parallel_size" | "context_parallel_size" | "expert_model_parallel_size" | "expert_tensor_parallel_size";
const SHOWN: readonly (readonly [string, Degree])[] = [
  ["tp", "tensor_model_parallel_size"], ["pp", "pipeline_model_parallel_size"], ["vpp", "virtual_pipeline_model_parallel_size"], ["cp", "context_parallel_size"], ["ep", "expert_model_parallel_size"], ["etp", "expert_tensor_parallel_size"],
];
const degree = (plan: Plan, name: Degree): number => plan.layout[name];
export const layoutOf = (plan: Plan): string =>
  SHOWN
    .filter(([short, name]) => short === "tp" || short === "pp" || (degree(plan, name) > 1 && (short !== "etp" || degree(plan, "expert_model_parallel_size") > 1)))
    .map(([short, name]) => `${short}${degree(plan, name)}`)
    .join(" ") + ` mbs${plan.micro_batch_size}`;

const columns = [
  { head: "layout", left: true, whole: true, value: layoutOf, shown: (one: Plan) => <span title={`${counted(one.num_microbatches, "microbatch", "microbatches")} of a step; ${one.layout.split ?? ""}`}>{layoutOf(one)}</span> },
  { head: "GPUs", value: (one: Plan) => one.layout.num_gpus },
  { head: "recompute", left: true, whole: true, value: (one: Plan) => one.recompute },
  { head: "precision", left: true, value: (one: Plan) => one.precision },
  { head: "features", value: (one: Plan) => one.features.length, shown: (one: Plan) => <span title={[...one.features, ...(one.optimizer_offload_fraction ? [`${percent(one.optimizer_offload_fraction)} of the optimizer in host memory`] : [])].join(", ")}>{one.features.length}</span> },
  { head: "tokens/s/GPU", value: (one: Plan) => one.tokens_per_s_gpu, shown: (one: Plan) => count(Math.round(one.tokens_per_s_gpu)) },
  { head: "step", value: (one: Plan) => one.step_s, shown: (one: Plan) => seconds(one.step_s) },
  { head: "MFU", value: (one: Plan) => one.mfu, shown: (one: Plan) => percent(one.mfu, 1) },
  { head: "bubble", value: (one: Plan) => one.bubble, shown: (one: Plan) => percent(one.bubble, 1) },
  { head: "peak GiB", value: (one: Plan) => one.peak_allocated_bytes, shown: (one: Plan) => <span title={`stage ${one.peak_stage}; all stages: ${one.peak_of_stages_bytes.map((bytes) => gib(bytes, 1)).join(", ")}`}>{gib(one.peak_allocated_bytes)}</span> },
  { head: "needs GiB", value: (one: Plan) => one.device_bytes.high, shown: (one: Plan) => `${gib(one.device_bytes.low, 1)}–${gib(one.device_bytes.high, 1)}` },
  { head: "why", left: true, title: "what limits the first, and how much slower the others are, and by what", value: (one: Plan) => one.beside_first || one.limited_by, shown: (one: Plan) => <span class="why-slower">{one.beside_first || one.limited_by}</span> },
  { head: "verdict", left: true, whole: true, value: (one: Plan) => one.verdict, shown: (one: Plan) => <span class={`word ${tone(one.verdict)}`}>{one.verdict}</span> },
];

/** What a whole run takes: columns that stand where they are asked for. */
const ofRun = (head: string, name: "goodput" | "tokens_per_dollar" | "days", text: (value: number) => string): Column<Plan> => {
  const value = (one: Plan) => (one.whole_run?.[name] as number | null | undefined) ?? NaN;
  return { head, value, shown: (one) => text(value(one)) };
};
const whole = [
  ofRun("goodput", "goodput", (share) => percent(share, 1)),
  ofRun("tokens/$", "tokens_per_dollar", (tokens) => count(Math.round(tokens))),
  ofRun("days", "days", (days) => days.toFixed(1)),
];

/** What features of the first plan are worth, and those that would pay. */
const Worth = ({ title, of }: { title: string; of: Plans["feature_worth"] }) =>
  of.length === 0 ? null : (
    <>
      <p>{title}:</p>
      <ul>
        {of.map((one) => (
          <li key={one.feature}>
            <strong>{one.says}</strong>: {one.saves >= 0 ? `${percent(one.saves, 1)} of the step` : `costs ${percent(-one.saves, 1)} of the step`}, {one.takes_bytes >= 0 ? `${gib(one.takes_bytes, 1)} GiB more` : `${gib(-one.takes_bytes, 1)} GiB less`}
            {one.numerics && `; ${one.numerics}`}
          </li>
        ))}
      </ul>
    </>
  );

const Found = ({ found, request }: { found: Plans; request: Asked }) => {
  const { engine, state, go, say } = usePage();
  const [filter, setFilter] = useState("");
  const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
  const rows = found.plans.filter((one) => {
    const text = `${layoutOf(one)} ${one.recompute} ${one.precision} ${one.verdict} ${one.layout.num_gpus}gpus`.toLowerCase();
    return words.every((word) => text.includes(word));
  });
  const open = (one: Plan) => go({ view: "estimate", run: changed(searched(state.run), one.settings, one.num_gpus ?? null) });
  const { counts } = found;
  const hand = async () => {
    try {
      const table = await engine.ask<{ name: string; text: string }>("export", { ...request, what: "plans", format: "csv" }, { progress: () => undefined });
      save(table.name, table.text, "text/csv");
    } catch (error) {
      say(sentence(error));
    }
  };
  const pin = { head: "pin", left: true, value: () => "", shown: (one: Plan) => (
    <button type="button" class="quiet" onClick={(event) => {
      event.stopPropagation();
      const kept = pinned(state.pins, nameOf(state), changed(searched(state.run), one.settings, one.num_gpus ?? one.layout.num_gpus), layoutOf(one));
      go(typeof kept === "string" ? {} : { pins: kept }, "replace");
      say(typeof kept === "string" ? kept : "Pinned. Compare shows the pinned runs side by side.");
    }}>pin</button>
  ) };
  const launch = { head: "launch", left: true, value: () => "", shown: (one: Plan) => (
    <button type="button" class="quiet" onClick={(event) => (event.stopPropagation(), void copy(one.launch.megatron_lm.map((word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`)).join(" "), say))}>copy</button>
  ) };
  return (
    <>
      <section class="card" aria-label="Result of the search" aria-live="polite">
        <p class={found.plans.length === 0 ? "refusal" : ""}>{worded(found.sentence)}</p>
        {found.state_bytes !== null ? <p>No layout was looked at: none can fit.</p> : <p>
          {count(counts.legal)} legal layouts: <strong>{count(counts.too_large)}</strong> cannot fit {gib(found.limit_bytes, 1)} GiB, whatever is recomputed, {count(counts.evaluated)} were evaluated, and no other can be better;{" "}
          {count(counts.examined)} are in the space.
        </p>}
        {found.interrupted && <p>The search was ended: this is the best so far.</p>}
        {found.fewest_gpus !== null && <p>Fewest GPUs for every phase: {count(found.fewest_gpus)}{found.fewest_gpus_to_train !== null && `, to train alone: ${count(found.fewest_gpus_to_train)}`}.</p>}
        {found.own && <p>{worded(found.own.sentence)}</p>}
        {[...found.assumptions, ...found.warnings].map((note) => <p key={note} class="quiet-text">{worded(note)}</p>)}
        {(found.feature_worth.length > 0 || found.features_that_pay.length > 0) && (
          <details>
            <summary>What features are worth</summary>
            <Worth title="On in the first plan" of={found.feature_worth} />
            <Worth title="Would pay in it" of={found.features_that_pay} />
          </details>
        )}
        {found.tight_plans.length > 0 && <p class="quiet-text">{counted(found.tight_plans.length, "plan")} that may not fit would be faster.</p>}
        <details>
          <summary>What ruled layouts out</summary>
          <ul>{Object.entries(counts.ruled_out).filter(([, many]) => many).map(([rule, many]) => <li key={rule}>{count(many)}: {rule}</li>)}</ul>
        </details>
      </section>
      {found.plans.length > 0 && (
        <>
          <Scatter found={found} rows={rows} open={open} />
          <section class="card" aria-label="Plans">
            <header class="card-head">
              <h2>The best {found.plans.length} by {found.objective}</h2>
              <label class="search">
                <span class="only-read">Filter plans</span>
                <input type="search" placeholder="Filter: tp4 full fits" value={filter} onInput={(event) => setFilter(event.currentTarget.value)} />
              </label>
              <button type="button" class="quiet" onClick={() => void hand()}>CSV</button>
            </header>
            <Table rows={rows} columns={[...columns, ...whole.filter((column) => rows.every((one) => !Number.isNaN(column.value(one)))), pin, launch]} label="Plans" keyOf={(one) => JSON.stringify(one.layout) + one.recompute + one.precision + one.micro_batch_size} pressed={open} />
          </section>
        </>
      )}
    </>
  );
};

/** How far a search is. */
const Bar = ({ how, cancel }: { how: Progress; cancel: () => void }) => (
  <section class="card" aria-label="Search">
    <p class="row">
      <progress max={1} value={how.share ?? 0} aria-label="Share of the layouts that are bounded" />
      <span>{percent(how.share ?? 0)}{typeof how["evaluated"] === "number" && `, ${count(how["evaluated"])} of ${count(Number(how["legal"] ?? 0))} legal layouts evaluated`}</span>
      <button type="button" onClick={cancel}>Cancel</button>
    </p>
  </section>
);

export const PlanView = () => {
  const { engine, state, go, say } = usePage();
  const [found, setFound] = useState<Plans | null>(null);
  const [how, setHow] = useState<Progress | null>(null);
  const [error, setError] = useState("");
  const abort = useRef<AbortController | null>(null);
  const { num_gpus, ...rest } = requestOf(searched(state.run)) as { num_gpus?: number };
  const axes = { ...(num_gpus === undefined ? {} : { num_gpus: String(num_gpus) }), ...state.axes };
  const request = { ...rest, axes, objective: state.objective, top: TOP };
  const key = JSON.stringify(request);

  useEffect(() => {
    setFound(null);
    setError("");
    setHow(null);
    if (!state.planned) return;
    const control = new AbortController();
    abort.current = control;
    setHow({ share: 0 });
    asked<Plans>(engine, "plan", request, { signal: control.signal, progress: setHow })
      .then((answer) => !control.signal.aborted && setFound(answer))
      .catch((problem: unknown) => !isCancelled(problem) && !control.signal.aborted && setError(sentence(problem)))
      .finally(() => abort.current === control && setHow(null));
    return () => control.abort();
  }, [key, state.planned]);

  const cancel = () => {
    abort.current?.abort();
    abort.current = null;
    setHow(null);
    go({ planned: false }, "replace");
    say("The search was cancelled.");
  };
  return (
    <main class="estimate">
      <aside>
        <Source />
        <form class="controls" aria-label="What is searched" onSubmit={(event) => (event.preventDefault(), go({ planned: true }))}>
          <RunFields />
          <fieldset>
            <legend>What is searched</legend>
            <p class="quiet-text">A value, a list 1,2,4, a range 2-16, or not:8; what is empty is searched whole, but for the precision, which stays that of the run as other settings do.</p>
            {AXES.map(([name, label, example]) => (
              <label class="control number" key={name}>
                <span class="label" title={name}><Linked>{label}</Linked></span>
                <input
                  name={`axis-${name}`}
                  placeholder={name === "num_gpus" && num_gpus !== undefined ? String(num_gpus) : example}
                  value={state.axes[name] ?? ""}
                  onInput={(event) => go({ axes: Object.fromEntries(Object.entries({ ...state.axes, [name]: event.currentTarget.value.trim() }).filter(([, words]) => words)), planned: false }, "replace")}
                />
              </label>
            ))}
            <label class="control">
              <span class="label">best by</span>
              <select value={state.objective} onChange={(event) => go({ objective: event.currentTarget.value, planned: false })}>
                {OBJECTIVES.map((one) => <option key={one} value={one}>{one}</option>)}
              </select>
            </label>
            <button type="submit" class="main" disabled={how !== null}>Plan</button>
          </fieldset>
        </form>
      </aside>
      <div>
        {how && <Bar how={how} cancel={cancel} />}
        {error && <p class="refusal" role="alert">{error}</p>}
        {found ? <Found found={found} request={request} /> : !how && !error && <p class="card">Press Plan: every legal layout of the space is estimated and timed, and the best that fit are listed.</p>}
      </div>
    </main>
  );
};
