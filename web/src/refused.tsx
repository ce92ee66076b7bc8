// A run that is refused: the sentence, and what it leaves open as fields.
import { useState } from "preact/hooks";
import { VARIABLES } from "./address";
import { changed, usePage } from "./context";
import type { Settings } from "./documents";
import type { Question } from "./engine";
import { worded } from "./words";

type Field = { readonly name: string; readonly kind: "variable" | "gpus" | "setting" };

/** What an option of the command line asks for: variables of the script, the number of GPUs, settings. */
export const fieldsOf = (option: string): readonly Field[] =>
  [...option.matchAll(/--(?:set ([A-Za-z_]\w*|\d+)=|([a-z][a-z0-9-]*))/g)].map(([, variable, setting]) =>
    variable !== undefined ? { name: variable, kind: "variable" } : setting === "num-gpus" ? { name: "num_gpus", kind: "gpus" } : { name: setting!.replaceAll("-", "_"), kind: "setting" },
  );

const LABELS: Readonly<Record<string, string>> = { num_gpus: "GPUs of the run", model: "model" };

export const Refused = ({ error, questions }: { error: string; questions: readonly Question[] }) => {
  const { state, go } = usePage();
  const [typed, setTyped] = useState<Readonly<Record<string, string>>>({});
  const asked = questions.filter((one) => fieldsOf(one.option).length);
  const fields = asked.flatMap((one) => fieldsOf(one.option));
  const settle = (words: Readonly<Record<string, string>>) => {
    const of = (kind: Field["kind"]) => fields.filter((one) => one.kind === kind && words[one.name]?.trim());
    const known = (state.run.settings[VARIABLES] ?? {}) as unknown as Readonly<Record<string, string>>;
    const variables = { ...known, ...Object.fromEntries(of("variable").map(({ name }) => [name, words[name]!.trim()])) };
    const settings: Record<string, unknown> = Object.keys(variables).length ? { [VARIABLES]: variables } : {};
    for (const { name } of of("setting")) {
      const text = words[name]!.trim();
      settings[name] = text !== "" && Number.isFinite(Number(text)) ? Number(text) : text;
    }
    const gpus = of("gpus").map(({ name }) => Number(words[name])).find((many) => Number.isInteger(many) && many > 0);
    go({ run: changed(state.run, settings as Settings, gpus ?? null) });
  };
  return (
    <section class={asked.length ? "refusal question" : "refusal"} role="alert" aria-label={asked.length ? "What is open" : "Refused"}>
      {asked.length > 0 && <h2>No estimate yet: {asked.length === 1 ? "one thing is open" : `${asked.length} things are open`}</h2>}
      <p>{worded(asked.length === 1 ? asked[0]!.what : asked.length ? "" : error)}</p>
      {asked.length > 0 && (
        <form aria-label="What is open" onSubmit={(event) => (event.preventDefault(), settle(typed))}>
          {asked.map((one) => (
            <div key={one.what} class="open-question">
              {asked.length > 1 && <p>{worded(one.what)}</p>}
              {fieldsOf(one.option).map(({ name, kind }) => (
                <p key={name} class="row">
                  <label class="row">
                    <span class="label">{kind === "variable" && /^\d+$/.test(name) ? `word ${name} of the caller` : (LABELS[name] ?? name)}</span>
                    <input name={`open-${name}`} placeholder={kind === "gpus" ? "8" : name === "model" || name.endsWith("MODEL") ? "Qwen/Qwen3-8B" : `value of ${name}`} value={typed[name] ?? ""} onInput={(event) => setTyped({ ...typed, [name]: event.currentTarget.value })} />
                  </label>
                  {one.values.map((value) => (
                    <button key={value} type="button" onClick={() => (asked.length > 1 ? setTyped({ ...typed, [name]: value }) : settle({ ...typed, [name]: value }))}>{value}</button>
                  ))}
                </p>
              ))}
            </div>
          ))}
          <button type="submit" class="main" disabled={!fields.some((one) => typed[one.name]?.trim())}>Go on</button>
        </form>
      )}
    </section>
  );
};
