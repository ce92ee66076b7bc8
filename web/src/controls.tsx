// The settings of a run as controls: values that are legal can be chosen, of the others it is said why not.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { VARIABLES } from "./address";
import { useAnswer } from "./asking";
import { changed, requestOf, usePage, without } from "./context";
import { Linked } from "./term";
import type { Choice, Choices, Estimate, SettingFacts, Value } from "./documents";

export const LABELS: readonly (readonly [string, string])[] = [
  ["tensor_model_parallel_size", "tensor parallel, tp"], ["pipeline_model_parallel_size", "pipeline parallel, pp"],
  ["virtual_pipeline_model_parallel_size", "virtual stages of each rank, vpp"], ["context_parallel_size", "context parallel, cp"],
  ["expert_model_parallel_size", "expert parallel, ep"], ["expert_tensor_parallel_size", "tensor parallel of experts, etp"],
  ["sequence_parallel", "sequence parallel"], ["micro_batch_size", "micro batch"], ["recompute", "recompute"], ["precision", "precision"],
  ["use_distributed_optimizer", "distributed optimizer"], ["use_precision_aware_optimizer", "precision-aware optimizer"],
];
/** Choices are asked in parts, so that a change does not wait for all of them. */
const GROUPS = [["gpu", "num_gpus", ...LABELS.slice(0, 4).map(([name]) => name)], LABELS.slice(4, 8).map(([name]) => name), LABELS.slice(8).map(([name]) => name)];
export const NUMBERS = [["num_gpus", "GPUs"], ["seq_length", "sequence length"], ["global_batch_size", "global batch"]] as const;

const shown = (value: Value): string => (value === true ? "on" : value === false ? "off" : value === null ? "1" : Array.isArray(value) ? value.join("+") : String(value));
const same = (one: Value, other: Value) => JSON.stringify(one ?? 1) === JSON.stringify(other ?? 1);

const MOST = 60;

/** A list, where the values together have more letters than buttons have room for. */
const List = ({ name, label, help, current, values, choose }: GroupProps) => {
  const now = values.findIndex((one) => same(one.value, current));
  return (
    <label class="control">
      <span class="label" title={help}><Linked>{label}</Linked></span>
      <select name={name} value={String(now)} onChange={(event) => choose(values[Number(event.currentTarget.value)]!)}>
        {now < 0 && <option value="-1">{shown(current)}</option>}
        {values.map((one, place) => (
          <option key={shown(one.value)} value={String(place)} disabled={one.refusal !== null} title={one.refusal ?? ""}>
            {shown(one.value)}{one.refusal === null ? "" : ` (${one.refusal})`}
          </option>
        ))}
      </select>
    </label>
  );
};

type GroupProps = { name: string; label: string; help: string; current: Value; values: readonly Choice[]; choose: (one: Choice) => void };

/** A group of values; arrows go from one to the next, those that are refused say why while they have the focus. */
const Group = ({ name, label, help, current, values, choose }: GroupProps) => {
  const [focus, setFocus] = useState<number | null>(null);
  const box = useRef<HTMLDivElement>(null);
  const now = values.findIndex((one) => same(one.value, current));
  const refusal = focus === null ? null : values[focus]?.refusal;
  const wayOut = (values[now]?.refusal ?? null) !== null && values.some((one) => one.refusal === null);
  const move = (event: KeyboardEvent, place: number) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    box.current?.querySelectorAll<HTMLButtonElement>("button")[(place + step + values.length) % values.length]?.focus();
  };
  return (
    <div class="control" onPointerLeave={() => setFocus(null)}>
      <span class="label" id={`label-${name}`} title={help}><Linked>{label}</Linked></span>
      <div class={wayOut ? "values way-out" : "values"} role="radiogroup" aria-labelledby={`label-${name}`} ref={box}>
        {values.map((one, place) => (
          <button
            key={shown(one.value)}
            type="button"
            role="radio"
            data-setting={name}
            aria-checked={place === now}
            aria-disabled={one.refusal !== null}
            aria-describedby={one.refusal === null ? undefined : `why-${name}`}
            title={one.refusal ?? `${name}: ${shown(one.value)}`}
            tabIndex={place === Math.max(0, now) ? 0 : -1}
            onFocus={() => setFocus(place)}
            onBlur={() => setFocus(null)}
            onPointerEnter={() => setFocus(place)}
            onKeyDown={(event) => move(event, place)}
            onClick={() => (one.refusal === null ? choose(one) : setFocus(place))}
          >
            {shown(one.value)}
          </button>
        ))}
      </div>
      {refusal && <p class="why" id={`why-${name}`} role="note">{refusal}</p>}
    </div>
  );
};

/** What is typed as a whole number, also with its thousands apart; null where it is none. */
const wholeOf = (typed: string): number | null => {
  const digits = typed.replace(/(?<=\d)[,_ ](?=\d{3}(?!\d))/g, "");
  return /^[0-9]+$/.test(digits) ? Number(digits) : null;
};

const NumberField = ({ name, label, value, own, given, legal, set }: { name: string; label: string; value: number | null; own: number | null; given: boolean; legal: readonly Choice[]; set: (value: number | null, how: "step" | "replace") => void }) => {
  const [text, setText] = useState<string | null>(null);
  useEffect(() => {
    if (text !== null && wholeOf(text) !== own) setText(null); // the run changed by itself: Back, a link, a plan
  }, [own]);
  const unread = text !== null && text !== "" && wholeOf(text) === null;
  return (
    <label class="control number">
      <span class="label" title={name}><Linked>{label}</Linked></span>
      <input
        type="text"
        aria-invalid={unread}
        inputMode="numeric"
        name={name}
        list={legal.length ? `legal-${name}` : undefined}
        class={given ? "given" : ""}
        value={text ?? (value === null ? "" : String(value))}
        onInput={(event) => {
          const typed = event.currentTarget.value.trim();
          setText(typed);
          const number = wholeOf(typed);
          if (typed === "" || number !== null) set(number, text === null ? "step" : "replace"); // what is typed at once is undone at once
        }}
        onBlur={() => setText(null)}
      />
      {legal.length > 0 && <datalist id={`legal-${name}`}>{legal.map((one) => <option key={String(one.value)} value={String(one.value)} />)}</datalist>}
      {unread && <span class="why" role="alert" style={{ gridColumn: "1 / -1" }}>{text} is no whole number; the figures are those of {value ?? "what is decided"}</span>}
    </label>
  );
};

const parsed = (kind: string, text: string): Value => {
  if (kind === "bool") return text === "true" || text === "on";
  if ((kind === "int" || kind === "float") && text.trim() !== "" && Number.isFinite(Number(text))) return Number(text);
  if (kind === "list" || kind === "words") return text.split(/[\s,]+/).filter(Boolean);
  if (kind === "ints") return text.split(/[\s,]+/).filter(Boolean).map(Number);
  return text;
};

/** Every other setting, found by a word of its name or its help. */
const Others = ({ facts }: { facts: readonly SettingFacts[] }) => {
  const { state, go } = usePage();
  const [name, setName] = useState("");
  const own = new Set([...LABELS.map(([own]) => own), ...NUMBERS.map(([own]) => own as string), "world_size", "gpu", "num_gpus"]);
  const known = useMemo(() => new Map(facts.map((one) => [one.name, one])), [facts]);
  const given = Object.entries(state.run.settings).filter(([one, value]) => !own.has(one) && one !== VARIABLES && value !== null);
  const set = (one: string, value: Value) => go({ run: { ...state.run, settings: { ...state.run.settings, [one]: value } } });
  const chosen = known.get(name.trim());
  const add = () => {
    if (!chosen) return;
    const value = chosen.kind === "bool" ? chosen.default !== true : (chosen.choices?.[0] ?? chosen.default ?? 0);
    set(chosen.name, value);
    setName("");
  };
  return (
    <fieldset>
      <legend>Any other setting</legend>
      <form class="add" onSubmit={(event) => (event.preventDefault(), add())}>
        <input list="settings" aria-label="Name of a setting" placeholder="a Megatron name" value={name} onInput={(event) => setName(event.currentTarget.value)} />
        <datalist id="settings">{facts.map((one) => <option key={one.name} value={one.name}>{one.help}</option>)}</datalist>
        <button type="submit" disabled={!chosen}>Add</button>
      </form>
      {chosen && <p class="quiet-text">{chosen.help}</p>}
      {given.map(([one, value]) => {
        const fact = known.get(one);
        return (
          <div class="control given-row" key={one}>
            <label>
              <span class="label" title={fact?.help}>{one}</span>
              {fact && fact.kind !== "list" && (fact.kind === "bool" || fact.choices?.length) ? (
                <select value={String(value)} onChange={(event) => set(one, parsed(fact.kind, event.currentTarget.value))}>
                  {[...new Set([...(fact.kind === "bool" ? ["true", "false"] : fact.choices!), String(value)])].map((word) => <option key={word} value={word}>{word}</option>)}
                </select>
              ) : (
                <input title={fact?.choices?.join(", ")} value={value === null ? "null" : Array.isArray(value) ? value.join(",") : String(value)} onChange={(event) => set(one, parsed(fact?.kind ?? "str", event.currentTarget.value))} />
              )}
            </label>
            <button type="button" class="quiet" aria-label={`Remove ${one}`} onClick={() => go({ run: without(state.run, [one]) })}>×</button>
          </div>
        );
      })}
    </fieldset>
  );
};

/** Variables of a script, and words of its caller, that were given. */
const Variables = () => {
  const { state, go } = usePage();
  const known = state.run.settings[VARIABLES] as unknown as Readonly<Record<string, string>> | undefined;
  if (!known) return null;
  const set = (name: string, word: string | undefined) => {
    const { [name]: _, ...rest } = known;
    const variables = word === undefined ? rest : { ...known, [name]: word };
    go({ run: Object.keys(variables).length ? changed(state.run, { [VARIABLES]: variables } as never) : without(state.run, [VARIABLES]) });
  };
  return (
    <fieldset>
      <legend>Variables of the script</legend>
      {Object.entries(known).map(([name, word]) => (
        <div class="control given-row" key={name}>
          <label>
            <span class="label">{/^\d+$/.test(name) ? `word ${name} of the caller` : name}</span>
            <input value={word} onChange={(event) => set(name, event.currentTarget.value)} />
          </label>
          <button type="button" class="quiet" aria-label={`Remove ${name}`} onClick={() => set(name, undefined)}>×</button>
        </div>
      ))}
    </fieldset>
  );
};

/** What a search keeps of a run: its GPU, the length of its sequences, and its batch. */
export const RunFields = () => {
  const { engine, state, go } = usePage();
  const { run } = state;
  const gpu = useAnswer<Choices>(engine, "choices", { ...requestOf(run), names: ["gpu"] }).found?.choices["gpu"];
  const set = (name: string, value: number | null, how: "step" | "replace") => go({ run: value === null ? without(run, [name]) : changed(run, { [name]: value }), planned: false }, how);
  return (
    <fieldset>
      <legend>GPU and batch</legend>
      {gpu && (
        <label class="control">
          <span class="label"><Linked>GPU</Linked></span>
          <select name="gpu" value={String(gpu.value)} onChange={(event) => go({ run: changed(run, { gpu: event.currentTarget.value }), planned: false })}>
            {gpu.values.map((one) => <option key={String(one.value)} value={String(one.value)} disabled={one.refusal !== null}>{String(one.value)}</option>)}
          </select>
        </label>
      )}
      {NUMBERS.filter(([name]) => name !== "num_gpus").map(([name, label]) => {
        const own = (run.settings[name] ?? null) as number | null;
        return <NumberField key={name} name={name} label={label} own={own} given={name in run.settings} value={own} legal={[]} set={(value, how) => set(name, value, how)} />;
      })}
    </fieldset>
  );
};

/** All controls of a run; what the engine has decided is shown where nothing was chosen. */
export const Controls = ({ found, current }: { found: Estimate | undefined; current: boolean }) => {
  const { engine, state, go } = usePage();
  const { run } = state;
  const groups = GROUPS.map((names) => useAnswer<Choices>(engine, "choices", current ? { ...requestOf(run), names } : null)); // behind the answer itself
  // of a run that is refused nothing is shown that another one had
  const choices: Choices["choices"] = Object.assign({}, ...groups.map((group) => (found || group.fresh ? group.found?.choices : {})));
  const facts = useAnswer<{ settings: readonly SettingFacts[] }>(engine, "settings", current ? {} : null).found?.settings ?? [];
  const choose = (one: Choice) => go({ run: changed(run, one.settings, one.num_gpus) });
  const helpOf = (name: string): string => [name, facts.find((one) => one.name === name)?.help].filter(Boolean).join(": ");
  const gpu = choices["gpu"];
  const numbers: Record<string, Value | undefined> = {
    num_gpus: found?.layout["world_size"],
    seq_length: found?.training["seq_length"] as number | undefined,
    global_batch_size: found?.training["global_batch_size"] as number | undefined,
  };
  const set = (name: string, value: number | null, how: "step" | "replace") => {
    const settings = { ...run.settings };
    delete settings[name];
    const { num_gpus, ...rest } = run;
    if (name === "num_gpus") go({ run: value === null ? rest : { ...rest, num_gpus: value } }, how);
    else go({ run: { ...run, settings: value === null ? settings : { ...settings, [name]: value } } }, how);
  };
  return (
    <form class="controls" aria-label="Settings" aria-busy={groups.some((group) => !group.fresh && group.error === undefined)} onSubmit={(event) => event.preventDefault()}>
      <fieldset>
        <legend>GPUs and batch</legend>
        {gpu && (
          <label class="control">
            <span class="label"><Linked>GPU</Linked></span>
            <select name="gpu" value={String(gpu.value)} onChange={(event) => go({ run: changed(run, { gpu: event.currentTarget.value }) })}>
              {gpu.values.map((one) => <option key={String(one.value)} value={String(one.value)} disabled={one.refusal !== null} title={one.refusal ?? ""}>{String(one.value)}{one.refusal ? " (refused)" : ""}</option>)}
            </select>
          </label>
        )}
        {NUMBERS.map(([name, label]) => (
          <NumberField
            key={name}
            name={name}
            label={label}
            own={((name === "num_gpus" ? run.num_gpus : run.settings[name]) ?? null) as number | null}
            given={name === "num_gpus" ? run.num_gpus !== undefined : name in run.settings}
            value={((name === "num_gpus" ? run.num_gpus : run.settings[name]) ?? numbers[name] ?? null) as number | null}
            legal={choices[name]?.values.filter((one) => one.refusal === null) ?? []}
            set={(value, how) => set(name, value, how)}
          />
        ))}
      </fieldset>
      <fieldset>
        <legend>Layout and training</legend>
        {LABELS.map(([name, label]) => {
          const one = choices[name];
          const letters = one?.values.reduce((sum, value) => sum + shown(value.value).length + 2, 0) ?? 0;
          const Kind = letters > MOST ? List : Group;
          return one && one.values.length > 1 && <Kind key={name} name={name} label={label} help={helpOf(name)} current={one.value} values={one.values} choose={choose} />;
        })}
      </fieldset>
      <Variables />
      <Others facts={facts} />
    </form>
  );
};
