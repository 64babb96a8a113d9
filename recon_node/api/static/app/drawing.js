// A drawing that the node made: an SVG with a style of its own, in a shadow root so that the two
// styles do not mix. The style becomes a sheet made by script, since the page allows no inline one.

import { html, useEffect, useRef } from "./html.js";

const FOCUS = ".node[tabindex] { cursor: pointer } .node:focus-visible { outline: 2px solid #6aa5ff }" +
  " .node[aria-current] .name { text-decoration: underline }";

/**
 * @param {{svg: string, label: string, chosen: string | null, choose: (title: string) => void}} props
 *   the nodes whose titles are CIDs or StreamIDs can be chosen
 */
export function Drawing({ svg, label, chosen, choose }) {
  const place = useRef(null);
  useEffect(() => {
    const root = place.current.shadowRoot ?? place.current.attachShadow({ mode: "open" });
    const [style, rules] = svg.match(/<style>([^<]*)<\/style>/);
    const drawn = new DOMParser().parseFromString(svg.replace(style, ""), "image/svg+xml").documentElement;
    const sheet = new CSSStyleSheet();
    sheet.replaceSync(rules + FOCUS);
    drawn.setAttribute("role", "group");
    root.adoptedStyleSheets = [sheet];
    root.replaceChildren(drawn);
    for (const node of drawn.querySelectorAll(".node")) makeButton(node, choose);
  }, [svg]);
  useEffect(() => {
    for (const node of place.current.shadowRoot.querySelectorAll(".node"))
      node.toggleAttribute("aria-current", node.querySelector("title")?.textContent === chosen);
  }, [svg, chosen]);
  return html`<div class="drawing" role="region" aria-label=${label} tabindex="0" ref=${place}></div>`;
}

function makeButton(node, choose) {
  const title = node.querySelector("title")?.textContent ?? "";
  if (!/^(ba|k)[a-z0-9]+$/.test(title)) return;
  node.setAttribute("tabindex", "0");
  node.setAttribute("role", "button");
  node.addEventListener("click", () => choose(title));
  node.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    choose(title);
  });
}
