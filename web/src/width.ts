// The width that a figure may take, as it changes.
import { useLayoutEffect, useRef, useState } from "preact/hooks";

export const useWidth = <E extends HTMLElement>(first = 800) => {
  const ref = useRef<E>(null);
  const [width, setWidth] = useState(first);
  useLayoutEffect(() => {
    const element = ref.current;
    if (!element) return;
    const measure = () => setWidth(Math.max(240, Math.floor(element.clientWidth)));
    measure();
    const watch = new ResizeObserver(measure);
    watch.observe(element);
    return () => watch.disconnect();
  }, []);
  return [ref, width] as const;
};
