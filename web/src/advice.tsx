// What would make the run fit, or faster: each change with what it saves and costs, applied by one press. Where the run does not fit
// nobody has to ask, and where no layout was given the first one that fits is searched.
import { useEffect, useState } from "preact/hooks";
import { asked } from "./asking";
import { changed, requestOf, usePage } from "./context";
import type { Advice, Bounds, Estimate, Plans } from "./documents";
import { type Progress, isCancelled, sentence } from "./engine";
import { counted, gib, percent, seconds } from "./figures";
import { Gauge } from "./gauge";
import { tone } from "./colours";
import { layoutOf, searched } from "./plan";
import type { Asked, Tool } from "./tools";
import { worded } from "./words";

const FIRST = 3;

const cost = (share: number | null): string => (share === null ? "" : Math.abs(share) < 5e-4 ? "no time" : `${share > 0 ? "+" : "−"}${percent(Math.abs(share), 1)} GPU time`);

type Long<T> = { readonly found: T | null; readonly error: string; readonly how: Progress | null };

/** The answer to a question that takes long, with how far it is; null asks nothing. */
const useLong = <T,>(tool: Tool, request: Asked | null): Long<T> => {
  const { engine } = usePage();
  const [kept, setKept] = useState<Long<T>>({ found: null, error: "", how: null });
  const key = request === null ? "" : JSON.stringify(request);
  useEffect(() => {
    setKept({ found: null, error: "", how: request === null ? null : {} });
    if (request === null) return;
    const abort = new AbortController();
    const current = (change: Partial<Long<T>>) => !abort.signal.aborted && setKept((before) => ({ ...before, ...change }));
    asked<T>(engine, tool, request, { signal: abort.signal, progress: (how) => current({ how }) })
      .then((found) => current({ found, how: null }))
      .catch((problem: unknown) => current({ error: isCancelled(problem) ? "" : sentence(problem), how: null }));
    return () => abort.abort();
  }, [engine, tool, key]);
  return kept;
};

const Waiting = ({ how, what }: { how: Progress; what: string }) => (
  <p class="row busy" role="status">
    {how.share !== undefined && <progress max={1} value={how.share} aria-label={what} />}
    <span>{what}{how.share === undefined ? " …" : `, ${percent(how.share)}`}</span>
  </p>
);

type Line = { readonly name: string; readonly verdict: string; readonly device_bytes: Bounds; readonly said: string; readonly notes: readonly string[]; readonly apply: () => void };

const Lines = ({ lines, limit }: { lines: readonly Line[]; limit: number }) => (
  <ol class="advice">
    {lines.map((one) => (
      <li key={one.name}>
        <span class="what">
          <strong>{one.name}</strong>
          <span class={`word ${tone(one.verdict)}`}>{one.verdict}</span>
          <Gauge device={one.device_bytes} limit={limit} label={one.name} />
          <span>{gib(one.device_bytes.low, 1)}–{gib(one.device_bytes.high, 1)} GiB{one.said}</span>
          {one.notes.map((note) => <small key={note}>{worded(note)}</small>)}
        </span>
        <button type="button" onClick={one.apply}>Apply</button>
      </li>
    ))}
  </ol>
);

/** The first layout that fits on these GPUs; where none does, the fewest GPUs that hold one. */
const FirstLayout = () => {
  const { state, go } = usePage();
  const run = searched(state.run);
  const { num_gpus, ...rest } = requestOf(run);
  const here = useLong<Plans>("plan", { ...rest, ...(num_gpus === undefined ? {} : { axes: { num_gpus: String(num_gpus) } }), top: 1 });
  const none = here.found !== null && here.found.plans.length === 0;
  const fewest = useLong<Plans>("plan", none ? { ...rest, top: 1, fewest_gpus: true } : null);
  const found = none ? fewest.found : here.found;
  const how = here.how ?? fewest.how;
  const plan = found?.plans[0];
  const error = here.error || fewest.error;
  return (
    <>
      {how && <Waiting how={how} what={none ? "No layout fits these GPUs; the fewest that hold one are searched" : "The first layout that fits is searched"} />}
      {error && <p class="quiet-text">{error}</p>}
      {none && <p>{worded(here.found?.sentence ?? "")}</p>}
      {plan && found && (
        <Lines
          limit={found.limit_bytes}
          lines={[{
            name: `${layoutOf(plan)} on ${counted(plan.layout.num_gpus, "GPU")}, recompute ${plan.recompute}`,
            verdict: plan.verdict,
            device_bytes: plan.device_bytes,
            said: `, ${seconds(plan.step_s)} a step, ${Math.round(plan.tokens_per_s_gpu).toLocaleString("en-US")} tokens/s/GPU`,
            notes: plan.features.length ? [`with ${plan.features.join(", ")}`] : [],
            apply: () => go({ run: changed(run, plan.settings, plan.num_gpus ?? plan.layout.num_gpus) }),
          }]}
        />
      )}
    </>
  );
};

export const AdviceCard = ({ found: run }: { found: Estimate }) => {
  const { engine, state, go } = usePage();
  const [all, setAll] = useState(false);
  const bad = tone(run.verdict.verdict) !== "good";
  const wanted = engine.live && (bad || state.advice);
  const { found, error, how } = useLong<Advice>("advise", wanted ? requestOf(state.run) : null);
  if (!engine.live) return null;
  const lines = (found?.advice ?? []).map((one) => ({
    name: one.changes.map((change) => change.name).join(" + "),
    verdict: one.verdict,
    device_bytes: one.device_bytes,
    said: [`; peak ${gib(one.peak_allocated_bytes)} GiB`, one.saved_bytes > 0 ? `, ${gib(one.saved_bytes)} GiB less than now` : "", one.changes_numerics ? ", changes numerics" : "", one.step_s === null ? "" : `, ${seconds(one.step_s)} a step`, cost(one.cost) && `, ${cost(one.cost)}`].join(""),
    notes: one.changes.flatMap((change) => (change.note ? [`${change.name}: ${change.note}`] : [])),
    apply: () => go({ run: changed(state.run, one.settings, one.num_gpus) }),
  }));
  const shown = all || state.advice ? lines : lines.slice(0, FIRST);
  return (
    <section class="card" aria-label="What to change" aria-busy={how !== null}>
      <header class="card-head">
        <h2>What to change</h2>
        {!bad && <button type="button" aria-pressed={state.advice} onClick={() => go({ advice: !state.advice })}>{state.advice ? "Hide" : "Find changes"}</button>}
      </header>
      {how && <Waiting how={how} what="Changes are estimated, alone and together" />}
      {error && <p class="refusal" role="alert">{error}</p>}
      {found && <p>{worded(found.sentence)}</p>}
      {found?.without_layout && <FirstLayout />}
      {found && lines.length > 0 && (
        <>
          <Lines lines={shown} limit={found.limit_bytes} />
          {lines.length > shown.length && <button type="button" class="quiet" onClick={() => setAll(true)}>Show all {lines.length}</button>}
          {found.assumptions.map((note) => <p key={note} class="quiet-text">{worded(note)}</p>)}
        </>
      )}
    </section>
  );
};
