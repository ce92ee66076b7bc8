// What every component may need: who answers, the state of the page, and how to change it.
import { createContext } from "preact";
import { useContext } from "preact/hooks";
import type { State } from "./address";
import type { Run, Settings, Value } from "./documents";
import type { Engine } from "./engine";

/** What a run left behind: a memory snapshot in base64, or the text of a log. */
export type Evidence = { readonly kind: "snapshot" | "log"; readonly name: string; readonly content: string };

export type Page = {
  readonly engine: Engine;
  readonly state: State;
  /** Change the state: a step that the browser's back button undoes, or with `replace` none of its own. */
  readonly go: (change: Partial<State>, how?: "step" | "replace") => void;
  readonly say: (sentence: string) => void;
  /** Open the glossary at a word, at its beginning for "", or close it. */
  readonly tell: (word: string | null) => void;
  readonly evidence: Evidence | null;
  readonly show: (evidence: Evidence | null) => void;
};

export const PageContext = createContext<Page | null>(null);

export const usePage = (): Page => {
  const page = useContext(PageContext);
  if (!page) throw new Error("a component outside of the page");
  return page;
};

/** A run with settings changed. null is kept: it also overrides what a file or a model says. */
export const changed = (run: Run, change: Settings, num_gpus: number | null = null): Run => {
  const settings: Record<string, Value> = { ...run.settings };
  let gpus = num_gpus ?? run.num_gpus;
  for (const [name, value] of Object.entries(change)) {
    if (name === "num_gpus" || name === "world_size") {
      gpus = typeof value === "number" ? value : gpus;
      delete settings["world_size"];
    } else settings[name] = value;
  }
  const { num_gpus: _, ...rest } = run;
  return gpus === undefined ? { ...rest, settings } : { ...rest, num_gpus: gpus, settings };
};

/** A run without some of its settings. */
export const without = (run: Run, names: readonly string[]): Run => ({
  ...run,
  settings: Object.fromEntries(Object.entries(run.settings).filter(([name]) => !names.includes(name))),
});

/** What requests about a run have in common. */
export const requestOf = (run: Run) => ({
  ...(run.text === undefined ? { model: run.model } : { text: run.text }),
  ...(run.files === undefined ? {} : { files: run.files }),
  ...(run.num_gpus === undefined ? {} : { num_gpus: run.num_gpus }),
  settings: run.settings,
});

export const nameOf = (state: State): string => state.run.text === undefined ? (state.run.model ?? "") : (state.file ?? "pasted run");
