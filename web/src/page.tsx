import { render } from "preact";
render(<p>Megatron memory</p>, document.body);
