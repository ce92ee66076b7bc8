// The verdict in words, what is judged, and the verdict on other GPUs.
import { tone } from "./colours";
import { changed, usePage } from "./context";
import type { Estimate } from "./documents";
import { counted, gib, parameters } from "./figures";

const DEGREES = [
  ["tp", "tensor_model_parallel_size"], ["pp", "pipeline_model_parallel_size"], ["vpp", "virtual_pipeline_model_parallel_size"],
  ["cp", "context_parallel_size"], ["ep", "expert_model_parallel_size"], ["etp", "expert_tensor_parallel_size"], ["dp", "data_parallel_size"],
] as const;

const degrees = (found: Estimate): string => {
  const moe = found.layout["expert_data_parallel_size"] !== null;
  return DEGREES.filter(([short, name]) => (["tp", "pp", "dp"].includes(short) ? true : (found.layout[name] ?? 1) !== 1 && (moe || !["ep", "etp"].includes(short))))
    .map(([short, name]) => `${short} ${String(found.layout[name] ?? 1)}`)
    .join(", ");
};

/** A sentence's first clause, and what follows it. */
const parts = (sentence: string): readonly [string, string] => {
  const end = sentence.indexOf(": ");
  return end < 0 ? [sentence, ""] : [sentence.slice(0, end), sentence.slice(end)];
};

export const VerdictLine = ({ found }: { found: Estimate }) => {
  const { verdict, model, training, peak, layout } = found;
  const { total, active } = model.num_parameters;
  return (
    <section class={`verdict ${tone(verdict.sentences[0]?.verdict ?? verdict.verdict)}`} aria-label="Verdict" aria-live="polite">
      {verdict.sentences.map((one) => {
        const [clause, rest] = parts(one.text);
        return (
          <p key={one.text} class={`sentence ${tone(one.verdict)}`}>
            <strong>{clause}</strong>
            {rest}
          </p>
        );
      })}
      <p>
        <span class="figure-of" data-bytes={peak.allocated_bytes}>Peak {gib(peak.allocated_bytes)} GiB</span> allocated on stage {peak.pp_rank}. {model.name || "model"},{" "}
        {parameters(total)} parameters{active !== total && ` (${parameters(active)} active)`}, on {counted(Number(layout["world_size"]), "GPU")}: {degrees(found)}; seq{" "}
        {String(training["seq_length"])}, mbs {String(training["micro_batch_size"])}, global batch {String(training["global_batch_size"])}.
      </p>
    </section>
  );
};

export const OtherGpus = ({ found }: { found: Estimate }) => {
  const { engine, state, go } = usePage();
  return (
    <p class="gpus">
      {found.gpus.map((one) => (
        <button
          key={one.name}
          type="button"
          class={`chip ${tone(one.verdict)}`}
          aria-pressed={one.name === found.verdict.gpu}
          disabled={!engine.live}
          title={`${one.name}, ${gib(one.memory_bytes, 1)} GiB: ${one.verdict}`}
          onClick={() => go({ run: changed(state.run, { gpu: one.name }) })}
        >
          {one.name} <small>{one.verdict === "fits only without fragmentation" ? "fits unfragmented" : one.verdict}</small>
        </button>
      ))}
    </p>
  );
};

export const Warnings = ({ warnings }: { warnings: readonly string[] }) =>
  warnings.length > 0 ? (
    <section class="card notes" aria-label="Warnings">
      <ul>{warnings.map((note) => <li key={note} class="warning">{note}</li>)}</ul>
    </section>
  ) : null;

export const Assumptions = ({ assumptions }: { assumptions: readonly string[] }) =>
  assumptions.length > 0 ? (
    <section class="card notes" aria-label="Assumptions">
      <details>
        <summary>{assumptions.length} {assumptions.length === 1 ? "thing was" : "things were"} decided because not given</summary>
        <ul>{assumptions.map((note) => <li key={note}>{note}</li>)}</ul>
      </details>
    </section>
  ) : null;
