// Words of the page: each opens the glossary at itself, which says what it means and where more stands.
import { useEffect, useRef } from "preact/hooks";
import { usePage } from "./context";
import { GLOSSARY, type Word } from "./glossary";

const namesOf = ({ word, also }: Word): readonly string[] => [word, ...word.split(", "), ...also].map((one) => one.toLowerCase());
const WORDS: ReadonlyMap<string, Word> = new Map(GLOSSARY.flatMap((one) => namesOf(one).map((name) => [name, one] as const)));

/** The word of the glossary that a text of the page is, its figures and what stands in brackets left out. */
export const wordOf = (text: string): Word | undefined => WORDS.get(text.toLowerCase()) ?? WORDS.get(text.toLowerCase().replace(/ \(.*\)$/, "").replace(/[0-9][0-9,.]* /g, ""));

/** A word that the glossary has, as a link to it; any other as it is. */
export const Linked = ({ children }: { children: string }) => {
  const { tell } = usePage();
  const word = wordOf(children);
  if (!word) return <>{children}</>;
  const open = (event: Event) => (event.preventDefault(), event.stopPropagation(), tell(word.word));
  return <a class="term" href="#words" title={word.meaning} onClick={open}>{children}</a>;
};

const DOCS = () => document.querySelector<HTMLMetaElement>('meta[name="docs"]')?.content;

const More = ({ page }: { page: string }) => {
  const docs = DOCS();
  return docs ? <a href={`${docs}${page}.html`} target="_blank" rel="noopener">{page}</a> : <span class="quiet-text">docs/{page}.md</span>;
};

/** The glossary, open at a word; "" opens it at its beginning. */
export const Glossary = ({ at }: { at: string | null }) => {
  const { tell } = usePage();
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    if (at === null) return dialog.current?.close();
    if (!dialog.current?.open) dialog.current?.showModal();
    dialog.current?.querySelector("[aria-current]")?.scrollIntoView({ block: "center" });
  }, [at]);
  return (
    <dialog ref={dialog} class="glossary" aria-labelledby="words" onClose={() => tell(null)} onClick={(event) => event.target === dialog.current && tell(null)}>
      <header class="card-head">
        <h2 id="words">Glossary</h2>
        <button type="button" onClick={() => tell(null)}>Close</button>
      </header>
      <dl tabIndex={0}>
        {GLOSSARY.map(({ word, meaning, page }) => (
          <div key={word} aria-current={word === at ? "true" : undefined}>
            <dt>{word}</dt>
            <dd>{meaning} <More page={page} /></dd>
          </div>
        ))}
      </dl>
    </dialog>
  );
};
