// Questions of components: asked anew when the request changes, the one before is cancelled, what was answered lately is kept.
import type { Asked, Tool } from "./tools";
import { useEffect, useState } from "preact/hooks";
import { type Asking, type Engine, type Question, Refusal, isCancelled, sentence } from "./engine";

export type Answer<T> = {
  /** The last answer; while a new one is on its way, or refused, that of the request before. */
  readonly found?: T;
  readonly error?: string;
  /** What the refused request leaves open. */
  readonly questions?: readonly Question[];
  readonly busy: boolean;
  /** Whether `found` answers the request as it is now. */
  readonly fresh: boolean;
};

type Kept<T> = { readonly key: string; readonly found?: T; readonly error?: string; readonly questions?: readonly Question[]; readonly busy: boolean };

const KEPT = 60;
const known = new Map<string, unknown>();

/** The document of a tool, from memory where it was asked lately. */
export const asked = async <T>(engine: Engine, tool: Tool, request: Asked, asking: Asking = {}): Promise<T> => {
  const key = `${tool} ${JSON.stringify(request)}`;
  if (known.has(key)) return known.get(key) as T;
  const found = await engine.ask<T>(tool, request, asking);
  known.set(key, found);
  if (known.size > KEPT) known.delete(known.keys().next().value!);
  return found;
};

/** The answer to a request; null asks nothing, and leaves what was answered before. */
export const useAnswer = <T>(engine: Engine, tool: Tool, request: Asked | null): Answer<T> => {
  const [kept, setKept] = useState<Kept<T>>({ key: "", busy: request !== null });
  const key = request === null ? "" : JSON.stringify(request);
  useEffect(() => {
    if (request === null) return;
    const abort = new AbortController();
    const hint = setTimeout(() => setKept((before) => ({ ...before, busy: true })), 60); // short ones do not flicker
    asked<T>(engine, tool, request, { signal: abort.signal })
      .then((found) => !abort.signal.aborted && setKept({ key, found, busy: false }))
      .catch((error: unknown) => {
        if (abort.signal.aborted || isCancelled(error)) return;
        if (!(error instanceof Refusal)) console.error(error);
        setKept(({ key: before, found }) => ({ key: before, ...(found === undefined ? {} : { found }), error: sentence(error), questions: error instanceof Refusal ? error.questions : [], busy: false }));
      })
      .finally(() => clearTimeout(hint));
    return () => {
      clearTimeout(hint);
      abort.abort();
    };
  }, [engine, tool, key]);
  const { key: of, ...answer } = kept;
  return { ...answer, fresh: of === key && answer.found !== undefined && answer.error === undefined };
};
