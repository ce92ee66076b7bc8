// Pinned runs side by side: figures, categories, tensors, and the settings that differ.
import { SHORT } from "./address";
import { useAnswer } from "./asking";
import { colourOf } from "./colours";
import { nameOf, requestOf, usePage } from "./context";
import type { Compared, Value } from "./documents";
import { size } from "./figures";

const WORDS = Object.fromEntries(Object.entries(SHORT).map(([short, name]) => [name, short]));
const MOST = 20;

const labelOf = (name: string, gpus: number | undefined, settings: Readonly<Record<string, Value>>): string =>
  [name.split("/").at(-1), gpus === undefined ? "" : `${gpus} GPUs`, ...Object.entries(settings).slice(0, 6).map(([one, value]) => `${WORDS[one] ?? one} ${String(value)}`)].filter(Boolean).join(" ");

export const PinButton = () => {
  const { state, go, say } = usePage();
  const pinned = state.pins.some((pin) => JSON.stringify(pin.run) === JSON.stringify(state.run));
  const pin = () => {
    const { pins, run } = state;
    if (pins.length >= MOST) return say(`${MOST} runs are pinned, as many as can be compared.`);
    const label = labelOf(nameOf(state), run.num_gpus, run.settings);
    const twice = pins.filter((one) => one.label === label || one.label.startsWith(`${label} #`)).length;
    go({ pins: [...pins, { label: twice ? `${label} #${twice + 1}` : label, run }] });
    say("Pinned. Compare shows the pinned runs side by side.");
  };
  return <button type="button" class="quiet" disabled={pinned} title="Keep this run for Compare" onClick={pin}>{pinned ? "Pinned" : "Pin this run"}</button>;
};

const written = (value: Value | undefined): string => (value === undefined ? "" : value === null ? "none" : Array.isArray(value) ? value.join(", ") || "none" : String(value));

const Share = ({ bytes, most, part }: { bytes: number | null; most: number; part: string }) => (
  <td>
    {bytes === null ? "–" : (
      <span class="share">
        <i style={{ width: `${most ? (60 * bytes) / most : 0}px`, background: colourOf(part) }} />
        <span data-bytes={bytes}>{size(bytes)}</span>
      </span>
    )}
  </td>
);

const Sides = ({ found }: { found: Compared }) => {
  const heads = found.cases.map((one) => one.label);
  const parts = found.parts.filter((one) => one.bytes.some((bytes) => bytes));
  const most = Math.max(1, ...parts.flatMap((one) => one.bytes.map((bytes) => bytes ?? 0)));
  const head = (first: string) => <tr><th class="left">{first}</th>{heads.map((one) => <th key={one} class="case">{one}</th>)}</tr>;
  const differs = new Set(found.differs);
  return (
    <>
      <section class="card" aria-label="Figures">
        <h2>Figures that differ</h2>
        <div class="scroll">
          <table>
            <thead>{head("figure")}</thead>
            <tbody>
              {Object.entries(found.figures).filter(([name]) => differs.has(name)).map(([name, values]) => (
                <tr key={name}><th class="left">{name}</th>{values.map((value, place) => <td key={place}>{value}</td>)}</tr>
              ))}
            </tbody>
          </table>
        </div>
      </section>
      {parts.length > 0 && (
        <section class="card" aria-label="Categories">
          <h2>At the peak, by category</h2>
          <div class="scroll">
            <table>
              <thead>{head("category")}</thead>
              <tbody>
                {parts.map(({ part, bytes: own }) => (
                  <tr key={part}><th class="left">{part}</th>{own.map((bytes, place) => <Share key={place} bytes={bytes} most={most} part={part} />)}</tr>
                ))}
              </tbody>
            </table>
          </div>
        </section>
      )}
      {found.tensors.length > 0 && (
        <section class="card" aria-label="Tensors that differ">
          <h2>Tensors that differ most</h2>
          <div class="scroll">
            <table>
              <thead>{head("tensor")}</thead>
              <tbody>
                {found.tensors.slice(0, 60).map((one) => (
                  <tr key={`${one.part} ${one.name}`}>
                    <th class="left"><i class="swatch" style={{ background: colourOf(one.part) }} /> {one.name}</th>
                    {one.bytes.map((bytes, place) => <td key={place}>{bytes === null ? "–" : size(bytes)}</td>)}
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        </section>
      )}
      {found.settings.length > 0 && (
        <section class="card" aria-label="Settings that differ">
          <h2>Settings that differ</h2>
          <div class="scroll">
            <table>
              <thead>{head("setting")}</thead>
              <tbody>
                {found.settings.map(({ name, values }) => (
                  <tr key={name}><th class="left">{name}</th>{values.map((value, place) => <td key={place}>{written(value)}</td>)}</tr>
                ))}
              </tbody>
            </table>
          </div>
        </section>
      )}
    </>
  );
};

export const CompareView = () => {
  const { engine, state, go } = usePage();
  const { pins } = state;
  const cases = pins.map((pin) => ({ label: pin.label, ...requestOf(pin.run) }));
  const { found, error, busy, fresh } = useAnswer<Compared>(engine, "compare", pins.length > 1 ? { cases } : null);
  return (
    <main class="whole">
      <section class="card" aria-label="Pinned runs">
        <h2>Pinned runs</h2>
        {pins.length < 2 && <p>Pin two runs or more, with the button at the top, to see what differs.</p>}
        <ul class="pins">
          {pins.map((pin, place) => (
            <li key={place}>
              <button type="button" onClick={() => go({ view: "estimate", run: pin.run })}>{pin.label}</button>
              <button type="button" class="quiet" aria-label={`Unpin ${pin.label}`} onClick={() => go({ pins: pins.filter((_, other) => other !== place) })}>×</button>
            </li>
          ))}
        </ul>
      </section>
      {error !== undefined && <p class="refusal" role="alert">{error}</p>}
      {busy && !found && <p class="busy">The runs are estimated …</p>}
      {found && error === undefined && pins.length > 1 && (
        <div class={fresh ? "" : "stale"} aria-busy={!fresh}>
          {found.cases.map((one) => "refusal" in one && <p key={one.label} class="refusal"><strong>{one.label}</strong>: {one.refusal}</p>)}
          <Sides found={found} />
        </div>
      )}
    </main>
  );
};
