// What would make the run fit, or faster: each change with what it saves and costs, applied by one press.
import { asked } from "./asking";
import { useEffect, useState } from "preact/hooks";
import { changed, requestOf, usePage } from "./context";
import type { Advice } from "./documents";
import { isCancelled, sentence } from "./engine";
import { gib, percent, seconds } from "./figures";
import { tone } from "./colours";

const cost = (share: number | null): string => (share === null ? "" : Math.abs(share) < 5e-4 ? "no time" : `${share > 0 ? "+" : "−"}${percent(Math.abs(share), 1)} GPU time`);

export const AdviceCard = () => {
  const { engine, state, go } = usePage();
  const [found, setFound] = useState<Advice | null>(null);
  const [error, setError] = useState("");
  const [busy, setBusy] = useState(false);
  const key = JSON.stringify(requestOf(state.run));

  useEffect(() => {
    setFound(null);
    setError("");
    if (!state.advice) return;
    const abort = new AbortController();
    setBusy(true);
    asked<Advice>(engine, "advise", requestOf(state.run), { signal: abort.signal, progress: () => undefined })
      .then((answer) => !abort.signal.aborted && setFound(answer))
      .catch((problem: unknown) => !isCancelled(problem) && !abort.signal.aborted && setError(sentence(problem)))
      .finally(() => !abort.signal.aborted && setBusy(false));
    return () => {
      abort.abort();
      setBusy(false);
    };
  }, [key, state.advice]);

  if (!engine.live) return null;
  return (
    <section class="card" aria-label="What to change" aria-busy={busy}>
      <header class="card-head">
        <h2>What to change</h2>
        <button type="button" aria-pressed={state.advice} onClick={() => go({ advice: !state.advice })}>{state.advice ? "Hide" : "Find changes"}</button>
      </header>
      {busy && <p class="busy">Changes are estimated, alone and together …</p>}
      {error && <p class="refusal" role="alert">{error}</p>}
      {found && <p>{found.sentence}</p>}
      {found && found.advice.length > 0 && (
        <>
          <ol class="advice">
            {found.advice.map((one) => {
              const name = one.changes.map((change) => change.name).join(" + ");
              return (
                <li key={name}>
                  <span>
                    <strong>{name}</strong>
                    <br />
                    <span class={`word ${tone(one.verdict)}`}>{one.verdict}</span>, {gib(one.device_bytes.low, 1)} to {gib(one.device_bytes.high, 1)} GiB; peak {gib(one.peak_allocated_bytes)} GiB
                    {one.step_s !== null && `, ${seconds(one.step_s)} a step`} {cost(one.cost)}
                    {one.changes.map((change) => change.note && <small key={change.name}><br />{change.name}: {change.note}</small>)}
                  </span>
                  <button type="button" onClick={() => go({ run: changed(state.run, one.settings, one.num_gpus) })}>Apply</button>
                </li>
              );
            })}
          </ol>
          {found.assumptions.map((note) => <p key={note} class="quiet-text">{note}</p>)}
        </>
      )}
    </section>
  );
};
