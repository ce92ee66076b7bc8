// The page: one state, which is in the address; three views of it.
import { render } from "preact";
import { useCallback, useEffect, useMemo, useState } from "preact/hooks";
import { EMPTY, type State, type View, addressOf, stateOf } from "./address";
import { CompareView, PinButton } from "./compare";
import { type Evidence, type Page, PageContext } from "./context";
import { type Engine, FrozenEngine, engineOf, frozen, sentence } from "./engine";
import { EstimateView } from "./estimate";
import { PlanView } from "./plan";
import { Glossary } from "./term";

const VIEWS: readonly (readonly [View, string])[] = [["estimate", "Estimate"], ["plan", "Plan"], ["compare", "Compare"]];

type Theme = "light dark" | "light" | "dark";
const THEMES: readonly Theme[] = ["light dark", "light", "dark"];
const THEME_WORDS: Readonly<Record<Theme, string>> = { "light dark": "auto", light: "light", dark: "dark" };

/** What the browser remembers, where it lets the page. */
const remembered = (name: string, value?: string): string | null => {
  try {
    if (value !== undefined) localStorage.setItem(name, value);
    return localStorage.getItem(name);
  } catch {
    return null;
  }
};

const useTheme = () => {
  const [theme, setTheme] = useState<Theme>(() => THEMES.find((one) => one === remembered("theme")) ?? "light dark");
  useEffect(() => {
    document.documentElement.style.colorScheme = theme;
    remembered("theme", theme);
  }, [theme]);
  return [theme, () => setTheme(THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length]!)] as const;
};

/** The last address that is written, or on its way: they follow one another as the states did. */
let written: Promise<void> = Promise.resolve();

const write = (state: State, how: "step" | "replace"): void => {
  const address = addressOf(state);
  written = written.then(async () => {
    const next = await address;
    if (next !== location.hash) history[how === "step" ? "pushState" : "replaceState"](null, "", next);
  }).catch((error: unknown) => console.warn(error)); // some browsers refuse very long addresses, and very many; the next is written again
};

const unread = (error: unknown): string => `The address cannot be read: ${sentence(error)}.`;

const App = ({ engine, first, problem }: { engine: Engine; first: State; problem: string }) => {
  const [state, setState] = useState(first);
  const [said, setSaid] = useState(problem);
  const [evidence, show] = useState<Evidence | null>(null);
  const [word, tell] = useState<string | null>(null);
  const [theme, turn] = useTheme();
  const say = useCallback((words: string) => {
    setSaid(words);
    setTimeout(() => setSaid((now) => (now === words ? "" : now)), 6000);
  }, []);
  const go = useCallback<Page["go"]>((change, how = "step") => {
    setState((before) => {
      const sameRun = !change.run || JSON.stringify(change.run) === JSON.stringify(before.run);
      const { moment: _, phase: __, ...rest } = before;
      const next = { ...(sameRun ? before : rest), ...change };
      write(next, how);
      return next;
    });
  }, []);
  useEffect(() => {
    let last = 0; // long addresses take longer to read than short ones
    const read = () => {
      const own = ++last;
      // what was pinned stays pinned: pins are kept beside the way back, as tabs of a browser are
      stateOf(location.hash).then((found) => own === last && setState((now) => ({ ...(found ?? first), pins: now.pins }))).catch((error: unknown) => own === last && say(unread(error)));
    };
    window.addEventListener("popstate", read);
    return () => window.removeEventListener("popstate", read);
  }, []);
  const page = useMemo(() => ({ engine, state, go, say, tell, evidence, show }), [engine, state, go, say, evidence]);
  return (
    <PageContext.Provider value={page}>
      <header class="top">
        <h1>Megatron memory</h1>
        <nav aria-label="Views">
          {VIEWS.filter(([view]) => engine.live || view === "estimate").map(([view, label]) => (
            <button key={view} type="button" aria-current={state.view === view ? "page" : undefined} onClick={() => go({ view })}>
              {label}
              {view === "compare" && state.pins.length > 0 && ` (${state.pins.length})`}
            </button>
          ))}
        </nav>
        <span class="tools">
          {engine.live && <PinButton />}
          {engine.docs && <a class="quiet" href={engine.docs}>API</a>}
          <button type="button" class="quiet" title="What the words of the page mean" onClick={() => tell("")}>Glossary</button>
          <button type="button" class="quiet" title="Light or dark" onClick={turn}>{`Theme: ${THEME_WORDS[theme]}`}</button>
        </span>
      </header>
      {engine.live && state.view === "plan" ? <PlanView /> : engine.live && state.view === "compare" ? <CompareView /> : <EstimateView />}
      <Glossary at={word} />
      <div class="said" role="status" aria-live="polite">{said && <p>{said}</p>}</div>
    </PageContext.Provider>
  );
};

const start = async () => {
  const report = await frozen();
  const kind = document.querySelector<HTMLMetaElement>('meta[name="engine"]')?.content ?? "http";
  if (!report && kind === "worker") navigator.serviceWorker?.register("offline.js").catch(() => undefined); // some hosts and frames allow none
  const engine = report ? new FrozenEngine(report.documents) : engineOf(kind);
  let first = EMPTY;
  let problem = "";
  try {
    first = (await stateOf(report ? report.address : location.hash)) ?? EMPTY;
  } catch (error) {
    problem = `${unread(error)} This is the page as it is without one.`;
  }
  render(<App engine={engine} first={first} problem={problem} />, document.body);
};

void start();
