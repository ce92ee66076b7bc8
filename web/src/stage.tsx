// Figures of one stage beside its peak, and what its process takes of the host.
import type { Bounds, Estimate, Stage, Term } from "./documents";
import { gib } from "./figures";
import { Linked } from "./term";

const range = ({ low, high }: Bounds): string => (gib(low) === gib(high) ? gib(low) : `${gib(low)} – ${gib(high)}`);

const Terms = ({ title, terms, sum }: { title: string; terms: readonly Term[]; sum?: Bounds }) => (
  <div class="scroll">
    <table aria-label={title}>
      <thead><tr><th class="left">{title}</th><th>GiB</th><th class="left">known from</th></tr></thead>
      <tbody>
        {terms.map((one) => (
          <tr key={one.name}><td class="left">{one.name}</td><td>{range(one)}</td><td class="left quiet-text">{one.source}</td></tr>
        ))}
        {sum && <tr><th class="left">together</th><td><strong>{range(sum)}</strong></td><td /></tr>}
      </tbody>
    </table>
  </div>
);

export const StageFigures = ({ found, stage }: { found: Estimate; stage: Stage }) => {
  const { routing } = found;
  const rows: readonly (readonly [string, string, string])[] = [
    ["between two steps", gib(stage.steady_allocated_bytes), "allocated by torch"],
    ["peak of the first step", gib(stage.first_step_peak_allocated_bytes), "allocated, before moments exist, where none are loaded"],
    ["peak of later steps", gib(stage.peak_allocated_bytes), `allocated at ${stage.peak_event}, ${stage.in_flight} microbatches in flight`],
    ["reserved", range(stage.reserved_bytes), "torch.cuda.max_memory_reserved, where the device has room"],
    ["nvidia-smi", range(stage.device_used_bytes), "reserved, and what is outside torch"],
  ];
  return (
    <section class="card" aria-label="Figures of the stage">
      <details>
        <summary>
          Stage {stage.pp_rank} in a log, and on the host: {gib(stage.host_bytes.low, 0)} to {gib(stage.host_bytes.high, 0)} GiB of host memory for each GPU, {gib(stage.host_bytes_per_node.low, 0)} to{" "}
          {gib(stage.host_bytes_per_node.high, 0)} for a node
        </summary>
        <table aria-label="What a log says">
          <tbody>{rows.map(([name, value, said]) => <tr key={name}><th class="left"><Linked>{name}</Linked></th><td>{value} GiB</td><td class="left quiet-text">{said}</td></tr>)}</tbody>
        </table>
        {routing && (
          <p>
            Peak by routing ({routing.phase}): {Object.entries(routing.peak_allocated_bytes).map(([name, bytes]) => `${name} ${gib(bytes)} GiB (${(routing.router_imbalance[name] ?? 1).toFixed(2)} times the rows of even routing)`).join(", ")}.
          </p>
        )}
        <Terms title="host memory of one GPU's process" terms={stage.host_terms} sum={stage.host_bytes} />
        <Terms title="host memory before the run, where Hugging Face weights are converted" terms={found.conversion} />
      </details>
    </section>
  );
};
