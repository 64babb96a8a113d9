// The ring of the key space: a segment for each sort value, this node's interests inside, and those
// of peers outside.

import { html } from "./html.js";

const CENTRE = 160;
const BANDS = { own: [92, 112], peers: [118, 148] };
const GAP = 0.012;  // of the ring, shared by all gaps
const LEAST = 0.08;  // of a segment: what a single controller is drawn as

/** Which share of a sort value's keys some arcs cover, from 0 to 1. */
export const shareOf = (arcs) => arcs.reduce((sum, { start, end }) => sum + end - start, 0);

/**
 * @param {{values: object[], chosen: string | null, peer: string | null,
 *   link: (value: string) => string, label: (value: object) => string}} props
 *   values as GET /ceramic/recon/coverage has them; `peer`: draw only that one
 */
export function Ring({ values, chosen, peer, link, label }) {
  const size = values.length ? 1 / values.length : 1;
  const gap = values.length > 1 ? Math.min(GAP, size / 4) : 0;
  const most = Math.max(1, ...values.map((each) => each.peers.length));
  const events = values.reduce((sum, each) => sum + each.events, 0);
  return html`<svg class="ring" viewBox="0 0 ${2 * CENTRE} ${2 * CENTRE}" role="group" aria-label="The ring of the key space; the table has the same">
    ${values.map((value, i) => {
      const at = (share) => i * size + gap / 2 + share * (size - gap);
      const shown = peer ? value.peers.filter((each) => each.id === peer) : value.peers;
      return html`<a key=${value.sort_key + value.sort_value} href=${link(value.sort_value)} aria-label=${label(value)}>
        <title>${label(value)}: ${value.events.toLocaleString("en")} events, ${value.peers.length} peers</title>
        <path class="track" d=${sector(at(0), at(1), BANDS.own)} /><path class="track" d=${sector(at(0), at(1), BANDS.peers)} />
        ${value.own.map((arc) => html`<path class="own" d=${sector(at(arc.start), at(atLeast(arc)), BANDS.own)} />`)}
        ${shown.flatMap((each) => each.arcs).map((arc) => html`<path class="peer" opacity=${peer ? 1 : 0.25 + 0.75 / most}
          d=${sector(at(arc.start), at(atLeast(arc)), BANDS.peers)} />`)}
        ${value.sort_value === chosen && html`<path class="chosen" d=${sector(at(0), at(1), [BANDS.own[0] - 3, BANDS.peers[1] + 3])} />`}
      </a>`;
    })}
    <text x=${CENTRE} y=${CENTRE - 2}>${values.length}</text><text class="soft" x=${CENTRE} y=${CENTRE + 16}>sort values</text>
    <text class="soft" x=${CENTRE} y=${CENTRE + 34}>${events.toLocaleString("en")} events</text>
  </svg>`;
}

const atLeast = ({ start, end }) => Math.min(1, Math.max(end, start + LEAST));

/** A part of a band, from one share of the ring to another. A whole one is drawn as two halves. */
function sector(from, to, band) {
  if (to - from > 0.9999) return sector(0, 0.5, band) + sector(0.5, 0.99995, band);
  const [inner, outer] = band;
  const far = to - from > 0.5 ? 1 : 0;
  return `M${point(from, outer)}A${outer} ${outer} 0 ${far} 1 ${point(to, outer)}L${point(to, inner)}A${inner} ${inner} 0 ${far} 0 ${point(from, inner)}Z`;
}

function point(share, radius) {
  const angle = 2 * Math.PI * share - Math.PI / 2;
  return `${(CENTRE + radius * Math.cos(angle)).toFixed(2)} ${(CENTRE + radius * Math.sin(angle)).toFixed(2)}`;
}
