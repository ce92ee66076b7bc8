// The answer in figures: does it fit, by how much, where, and how fast; then in sentences.
import { tone } from "./colours";
import { usePage } from "./context";
import type { Estimate, Event, Speed } from "./documents";
import { counted, count, gib, parameters, percent, seconds } from "./figures";
import { Gauge } from "./gauge";
import { DOES } from "./phases";
import { Linked } from "./term";
import { worded } from "./words";

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

/** The phases that the answer is about: training, resuming, and what decides. */
const judged = (found: Estimate): readonly Event[] => {
  const { events, phase } = found.verdict;
  return events.filter((one) => one.phase === "training" || one.phase === "load" || one.phase === phase);
};

/** What is left of each GPU, or is too much, at worst and at best. */
const room = ({ low, high }: { low: number; high: number }): string =>
  low >= 0 ? `${gib(low, 1)} to ${gib(high, 1)} GiB left` : high < 0 ? `${gib(-high, 1)} to ${gib(-low, 1)} GiB too much` : `${gib(-low, 1)} GiB too much to ${gib(high, 1)} left`;

const WORDS: Readonly<Record<string, string>> = { fits: "Fits", tight: "Tight", "does not fit": "Does not fit", "fits only without fragmentation": "Fits unfragmented" };

const Figure = ({ name, value, hint }: { name: string; value: string; hint?: string | undefined }) => (
  <div title={hint}>
    <dt><Linked>{name}</Linked></dt>
    <dd>{value}</dd>
  </div>
);

const Speeds = ({ speed }: { speed: Speed }) => {
  const [low, high] = [speed.tokens_per_s_gpu_low, speed.tokens_per_s_gpu_high].map((rate) => count(Math.round(rate)));
  return (
    <>
      <Figure name={`step of ${count(speed.samples)} samples`} value={seconds(speed.step_s)} hint={Object.entries(speed.parts_s).map(([part, s]) => `${part} ${seconds(s)}`).join(", ")} />
      <Figure name="tokens/s/GPU" value={count(Math.round(speed.tokens_per_s_gpu))} hint={`${low} to ${high} by published runs; ${speed.tflops_gpu.toFixed(0)} TFLOP/s of each GPU`} />
      <Figure name="MFU" value={percent(speed.mfu, 1)} hint={`bubble ${percent(speed.bubble, 1)}, communication that nothing hides ${percent(speed.exposed, 1)}`} />
      <Figure name="largest overhead" value={speed.limited_by} />
    </>
  );
};

export const Head = ({ found, speed }: { found: Estimate; speed: Speed | undefined }) => {
  const { go } = usePage();
  const { verdict, model, training, peak, layout } = found;
  const { total, active } = model.num_parameters;
  const far = Math.max(...judged(found).map((one) => one.device_bytes.high));
  const kind = tone(verdict.verdict);
  return (
    <section class={`verdict ${kind}`} aria-label="Verdict" aria-live="polite">
      <div class="head">
        <p class={`big ${kind}`}>
          <strong>{WORDS[verdict.verdict] ?? verdict.verdict}</strong>
          <span>{room(verdict.head_room_bytes)}</span>
          <small>to {DOES[verdict.phase] ?? verdict.phase}, of each {verdict.gpu}, {verdict.head_room_bytes.high < 0 ? "at best and at worst" : "at worst and at best"}</small>
        </p>
        <div class="gauges">
          {judged(found).map((one) => (
            <button key={one.phase} type="button" class={`quiet ${tone(one.verdict)}`} title={`What ${DOES[one.phase] ?? one.phase} takes`} onClick={() => go({ phase: one.phase, stage: one.pp_rank }, "replace")}>
              <span class="label">to {DOES[one.phase] ?? one.phase}</span>
              <Gauge device={one.device_bytes} limit={verdict.memory_bytes} label={one.phase} far={far} />
              <span class={`word ${tone(one.verdict)}`}>{gib(one.device_bytes.low, 1)}–{gib(one.device_bytes.high, 1)} of {gib(verdict.memory_bytes, 1)} GiB</span>
            </button>
          ))}
          <p class="quiet-text">full: surely; pale: up to; line: the GPU's memory</p>
        </div>
        <dl class="figures">
          <Figure name="decided by" value={`${found.stages.length > 1 ? `stage ${verdict.pp_rank} of 0–${found.stages.length - 1}, ` : ""}to ${DOES[verdict.phase] ?? verdict.phase}`} />
          {speed && kind !== "bad" && <Speeds speed={speed} />}
        </dl>
      </div>
      {verdict.sentences.map((one) => {
        const [clause, rest] = parts(worded(one.text));
        return (
          <p key={one.text} class={`sentence ${tone(one.verdict)}`}>
            <strong>{clause}</strong>
            {rest}
          </p>
        );
      })}
      <p class="quiet-text">
        <span class="figure-of" data-bytes={peak.allocated_bytes}>Peak {gib(peak.allocated_bytes)} GiB</span> allocated on stage {peak.pp_rank}. {model.name || "model"},{" "}
        {parameters(total)} parameters{active !== total && ` (${parameters(active)} active)`}, on {counted(Number(layout["world_size"]), "GPU")}: {degrees(found)}; seq{" "}
        {String(training["seq_length"])}, mbs {String(training["micro_batch_size"])}, global batch {String(training["global_batch_size"])}
        {speed && speed.samples !== training["global_batch_size"] && " (as few as change the peak: none is given)"}.
        {verdict.not_counted && ` Without ${verdict.not_counted}.`}
      </p>
    </section>
  );
};
