// The verdict on other GPUs, and what is noted about a run.
import { tone } from "./colours";
import { changed, usePage } from "./context";
import type { Estimate } from "./documents";
import { gib } from "./figures";
import { worded } from "./words";

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
      <ul>{warnings.map((note) => <li key={note} class="warning">{worded(note)}</li>)}</ul>
    </section>
  ) : null;

export const Assumptions = ({ assumptions }: { assumptions: readonly string[] }) =>
  assumptions.length > 0 ? (
    <section class="card notes" aria-label="Assumptions">
      <details>
        <summary>{assumptions.length} {assumptions.length === 1 ? "thing was" : "things were"} decided because not given</summary>
        <ul>{assumptions.map((note) => <li key={note}>{worded(note)}</li>)}</ul>
      </details>
    </section>
  ) : null;
