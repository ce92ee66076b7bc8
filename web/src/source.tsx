// The model or the run: by name with search as one types, or the content of a file, dropped or pasted.
import { useEffect, useId, useState } from "preact/hooks";
import { useAnswer } from "./asking";
import { type Page, usePage } from "./context";
import type { ModelFacts } from "./documents";
import { sentence } from "./engine";
import { evidenceOf } from "./evidence";
import { parameters } from "./figures";
import { type Given, droppedOf, runOf, textOf, textsOf } from "./files";

/** What is dropped, opened or pasted as what it is: a run, files of one, or what a run left behind. */
const opened = async (given: readonly Given[], { state, go, show, say }: Page): Promise<void> => {
  try {
    const known = await Promise.all(given.slice(0, SEVERAL).map(({ file }) => evidenceOf(file)));
    const evidence = known.find((one) => one !== null) ?? null;
    if (evidence) show(evidence);
    const runs = given.filter((_, place) => !known[place]);
    go({ view: "estimate", ...(runs.length ? runOf(await textsOf(runs), state.run, state.file) : {}) });
  } catch (error) {
    say(sentence(error));
  }
};

/** As many files are looked at as what a run left behind. */
const SEVERAL = 12;

/** A file that is dropped anywhere, or a text that is pasted where no field has the focus, is the run. */
export const useDrops = () => {
  const page = usePage();
  const { engine, go } = page;
  useEffect(() => {
    if (!engine.live) return;
    const take = (text: string, file: string) => go({ run: { text, settings: {} }, file, view: "estimate" });
    const over = (event: DragEvent) => event.preventDefault();
    const drop = (event: DragEvent) => {
      event.preventDefault();
      const data = event.dataTransfer;
      const text = data?.getData("text");
      if (data?.files.length) void droppedOf(data).then((given) => opened(given, page));
      else if (text) take(text, "dropped text");
    };
    const paste = (event: ClipboardEvent) => {
      if (event.target instanceof Element && event.target.closest("input, textarea, select")) return;
      const data = event.clipboardData;
      const text = data?.getData("text") ?? "";
      if (data?.files.length) void droppedOf(data).then((given) => opened(given, page));
      else if (text.trim()) take(text, "pasted text");
    };
    window.addEventListener("dragover", over);
    window.addEventListener("drop", drop);
    document.addEventListener("paste", paste);
    return () => {
      window.removeEventListener("dragover", over);
      window.removeEventListener("drop", drop);
      document.removeEventListener("paste", paste);
    };
  }, [page]);
};

const rank = (name: string, words: readonly string[]): boolean => words.every((word) => name.includes(word));

const Search = () => {
  const { engine, state, go } = usePage();
  const [typed, setTyped] = useState<string | null>(null);
  const [place, setPlace] = useState(0);
  const [wanted, setWanted] = useState(false);
  const list = useId();
  const models = useAnswer<readonly ModelFacts[]>(engine, "models", wanted ? {} : null).found ?? [];
  const words = (typed ?? "").toLowerCase().split(/\s+/).filter(Boolean);
  const matching = models.filter((one) => rank(`${one.name} ${one.model_type}`.toLowerCase(), words)).slice(0, 60);
  const open = typed !== null;
  const choose = (name: string) => {
    setTyped(null);
    const { num_gpus, settings } = state.run;
    const gpu = settings["gpu"];
    const kept = textOf(state.run) === undefined ? { ...(num_gpus === undefined ? {} : { num_gpus }), settings: gpu === undefined ? {} : { gpu } } : { settings: {} };
    go({ run: { model: name, ...kept }, file: undefined as never });
  };
  const keys = (event: KeyboardEvent) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      setTyped(typed ?? "");
      setPlace((place + (event.key === "ArrowDown" ? 1 : -1) + matching.length) % Math.max(1, matching.length));
    } else if (event.key === "Enter") {
      event.preventDefault();
      const name = matching[place]?.name ?? typed?.trim();
      if (open && name && (typed?.trim() || place > 0)) choose(name);
    } else if (event.key === "Escape") setTyped(null);
  };
  return (
    <div class="model">
      <label>
        <span class="label">Model</span>
        <input
          type="text"
          role="combobox"
          name="model"
          aria-expanded={open}
          aria-controls={list}
          aria-activedescendant={open && matching[place] ? `${list}-${place}` : undefined}
          autocomplete="off"
          spellcheck={false}
          placeholder="Search: llama 70b, deepseek, qwen3 moe …"
          value={typed ?? (state.run.files ? "" : (state.run.model ?? ""))}
          onFocus={(event) => {
            setWanted(true);
            event.currentTarget.select();
          }}
          onInput={(event) => {
            setTyped(event.currentTarget.value);
            setPlace(0);
          }}
          onKeyDown={keys}
          onBlur={() => setTyped(null)}
        />
      </label>
      {open && (
        <ul id={list} role="listbox" aria-label="Models">
          {matching.map((one, number) => (
            <li
              key={one.name}
              id={`${list}-${number}`}
              role="option"
              aria-selected={number === place}
              title={one.refused ?? ""}
              onPointerDown={(event) => (event.preventDefault(), choose(one.name))}
            >
              {one.name} <small>{one.num_parameters ? parameters(one.num_parameters.total) : ""}{one.refused ? " · refused" : ""}</small>
            </li>
          ))}
          {models.length > 0 && matching.length === 0 && <li class="none">no bundled model has these words; paste its config.json</li>}
        </ul>
      )}
    </div>
  );
};

export const Source = () => {
  const page = usePage();
  const { engine, state, go } = page;
  const { run } = state;
  const [open, setOpen] = useState(false);
  useDrops();
  const text = textOf(run);
  const edited = (text: string) => {
    if (!text.trim()) return;
    const { run: next, file } = run.files ? { run: { ...run, files: { ...run.files, [run.model!]: text } }, file: undefined as never } : { run: { ...(run.text === undefined ? { settings: {} } : run), text }, file: state.file ?? "pasted text" };
    go({ run: next, file }, textOf(run) === undefined ? "step" : "replace");
  };
  return (
    <section class="source" aria-label="Model or run">
      <Search />
      <div class="paste">
        <button type="button" aria-expanded={open || text !== undefined} onClick={() => setOpen(!open)}>Paste a config or a run</button>
        <label class="button">
          Open files
          <input
            type="file"
            multiple
            class="only-read"
            onChange={(event) => {
              const given = [...(event.currentTarget.files ?? [])].map((file) => ({ path: file.name, file }));
              event.currentTarget.value = "";
              if (given.length) void opened(given, page);
            }}
          />
        </label>
        <span class="quiet-text">or drop them anywhere, a folder too: config.json, launch script with what it sources, YAML, Bridge config. It {engine.place}.</span>
      </div>
      {run.files && (
        <label class="row">
          <span class="label">The run, of {Object.keys(run.files).length} files</span>
          <select name="run" value={run.model ?? ""} onChange={(event) => go({ run: { model: event.currentTarget.value, files: run.files!, settings: {} } })}>
            {Object.keys(run.files).map((path) => <option key={path} value={path}>{path}</option>)}
          </select>
        </label>
      )}
      {(open || text !== undefined) && (
        <label class="text">
          <span class="label">{run.files ? run.model : (state.file ?? "config.json, launch script, YAML of arguments, Bridge config")}</span>
          <textarea name="text" rows={8} spellcheck={false} value={text ?? ""} onInput={(event) => edited(event.currentTarget.value)} />
        </label>
      )}
    </section>
  );
};
