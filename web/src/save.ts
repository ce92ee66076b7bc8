// Files that the page hands out: texts, and figures as SVG or PNG with the colours they have on the page.

export const save = (name: string, content: BlobPart, type: string): void => {
  const url = URL.createObjectURL(new Blob([content], { type }));
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
};

const DRAWN = ["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "fill-opacity", "font-family", "font-size", "font-weight", "text-anchor", "dominant-baseline"];

/** A figure as a document of its own: what the sheet of styles says stands at every element. */
export const svgText = (figure: SVGSVGElement): string => {
  const copy = figure.cloneNode(true) as SVGSVGElement;
  const originals = [figure, ...figure.querySelectorAll<SVGElement>("*")];
  [copy, ...copy.querySelectorAll<SVGElement>("*")].forEach((element, place) => {
    const style = getComputedStyle(originals[place]!);
    for (const name of DRAWN) {
      const value = style.getPropertyValue(name);
      if (value) element.setAttribute(name, value);
    }
    element.removeAttribute("class");
    element.removeAttribute("tabindex");
  });
  const { width, height } = figure.getBoundingClientRect();
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.setAttribute("width", String(width));
  copy.setAttribute("height", String(height));
  const ground = document.createElementNS("http://www.w3.org/2000/svg", "rect");
  for (const [name, value] of Object.entries({ width: "100%", height: "100%", fill: getComputedStyle(document.body).backgroundColor })) ground.setAttribute(name, value);
  copy.prepend(ground);
  return `<?xml version="1.0" encoding="UTF-8"?>\n${new XMLSerializer().serializeToString(copy)}`;
};

export const saveSvg = (name: string, figure: SVGSVGElement): void => save(`${name}.svg`, svgText(figure), "image/svg+xml");

export const savePng = async (name: string, figure: SVGSVGElement, scale = 2): Promise<void> => {
  const { width, height } = figure.getBoundingClientRect();
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svgText(figure))}`;
  await image.decode();
  const canvas = document.createElement("canvas");
  canvas.width = Math.ceil(width * scale);
  canvas.height = Math.ceil(height * scale);
  const context = canvas.getContext("2d")!;
  context.scale(scale, scale);
  context.drawImage(image, 0, 0);
  const blob = await new Promise<Blob | null>((resolve) => canvas.toBlob(resolve, "image/png"));
  if (blob) save(`${name}.png`, blob, "image/png");
};
