// The model or the run: by name with search as one types, or the content of a file, dropped or pasted.
import { useEffect, useId, useState } from "preact/hooks";
import { useAnswer } from "./asking";
import { type Page, usePage } from "./context";
import { evidenceOf } from "./evidence";
import type { ModelFacts, Run } from "./documents";
import { parameters } from "./figures";

const LARGEST = 1.5 * 2 ** 20;

/** A run of a file's content: what the file says, and no setting of the run before. */
export const ofText = (text: string): Run => ({ text, settings: {} });

const ofFile = async (file: File): Promise<string> => {
  if (file.size > LARGEST) throw new Error(`${file.name} has ${file.size} bytes; the page reads at most ${LARGEST}`);
  return file.text();
};

/** A file as what it is: a run, or what a run left behind. */
const opened = (file: File, go: Page["go"], show: Page["show"], say: Page["say"]): void =>
  void evidenceOf(file)
    .then(async (found) => {
      if (found) show(found);
      go(found ? { view: "estimate" } : { run: ofText(await ofFile(file)), file: file.name, view: "estimate" });
    })
    .catch((error: Error) => say(error.message));

/** A file that is dropped anywhere, or a text that is pasted where no field has the focus, is the run. */
export const useDrops = () => {
  const { engine, go, say, show } = usePage();
  useEffect(() => {
    if (!engine.live) return;
    const take = (text: string, file: string) => go({ run: ofText(text), file, view: "estimate" });
    const over = (event: DragEvent) => event.preventDefault();
    const drop = (event: DragEvent) => {
      event.preventDefault();
      const file = event.dataTransfer?.files[0];
      const text = event.dataTransfer?.getData("text");
      if (file) opened(file, go, show, say);
      else if (text) take(text, "dropped text");
    };
    const paste = (event: ClipboardEvent) => {
      if (event.target instanceof Element && event.target.closest("input, textarea, select")) return;
      const file = event.clipboardData?.files[0];
      const text = event.clipboardData?.getData("text") ?? "";
      if (file) opened(file, go, show, say);
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
  }, [engine, go, say, show]);
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
    const kept = state.run.text === undefined ? { ...(num_gpus === undefined ? {} : { num_gpus }), settings: gpu === undefined ? {} : { gpu } } : { settings: {} };
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
          value={typed ?? state.run.model ?? ""}
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
  const { engine, state, go, say, show } = usePage();
  const { run } = state;
  const [open, setOpen] = useState(false);
  useDrops();
  const texted = run.text !== undefined;
  return (
    <section class="source" aria-label="Model or run">
      <Search />
      <div class="paste">
        <button type="button" aria-expanded={open || texted} onClick={() => setOpen(!open)}>Paste a config or a run</button>
        <label class="button">
          Open a file
          <input
            type="file"
            class="only-read"
            onChange={(event) => {
              const file = event.currentTarget.files?.[0];
              event.currentTarget.value = "";
              if (file) opened(file, go, show, say);
            }}
          />
        </label>
        <span class="quiet-text">or drop it anywhere: config.json, launch script, YAML, Bridge config. It {engine.place}.</span>
      </div>
      {(open || texted) && (
        <label class="text">
          <span class="label">{state.file ?? "config.json, launch script, YAML of arguments, Bridge config"}</span>
          <textarea
            name="text"
            rows={8}
            spellcheck={false}
            value={run.text ?? ""}
            onInput={(event) => {
              const text = event.currentTarget.value;
              if (text.trim()) go({ run: { ...(texted ? run : { settings: {} }), text }, file: state.file ?? "pasted text" }, texted ? "replace" : "step");
            }}
          />
        </label>
      )}
    </section>
  );
};
