// The engine in a Web Worker.
export {};
