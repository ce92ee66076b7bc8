// Questions of components: asked anew when the request changes, the one before is cancelled, what was answered lately is kept.
import { useEffect, useState } from "preact/hooks";
import { type Asking, type Engine, Refusal, isCancelled, sentence } from "./engine";

export type Answer<T> = {
  /** The last answer; while a new one is on its way, or refused, that of the request before. */
  readonly found?: T;
  readonly error?: string;
  readonly busy: boolean;
};

const KEPT = 60;
const known = new Map<string, unknown>();

/** The document of a tool, from memory where it was asked lately. */
export const asked = async <T>(engine: Engine, tool: string, request: object, asking: Asking = {}): Promise<T> => {
  const key = `${tool} ${JSON.stringify(request)}`;
  if (known.has(key)) return known.get(key) as T;
  const found = await engine.ask<T>(tool, request, asking);
  known.set(key, found);
  if (known.size > KEPT) known.delete(known.keys().next().value!);
  return found;
};

/** The answer to a request; null asks nothing. */
export const useAnswer = <T>(engine: Engine, tool: string, request: object | null): Answer<T> => {
  const [answer, setAnswer] = useState<Answer<T>>({ busy: request !== null });
  const key = request === null ? "" : JSON.stringify(request);
  useEffect(() => {
    if (request === null) {
      setAnswer({ busy: false });
      return;
    }
    const abort = new AbortController();
    const hint = setTimeout(() => setAnswer((before) => ({ ...before, busy: true })), 60); // short ones do not flicker
    asked<T>(engine, tool, request, { signal: abort.signal })
      .then((found) => !abort.signal.aborted && setAnswer({ found, busy: false }))
      .catch((error: unknown) => {
        if (abort.signal.aborted || isCancelled(error)) return;
        if (!(error instanceof Refusal)) console.error(error);
        setAnswer((before) => ({ ...(before.found === undefined ? {} : { found: before.found }), error: sentence(error), busy: false }));
      })
      .finally(() => clearTimeout(hint));
    return () => {
      clearTimeout(hint);
      abort.abort();
    };
  }, [engine, tool, key]);
  return answer;
};
