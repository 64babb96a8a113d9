// A chart over time, by uPlot. Its numbers are also said in words, for those who do not see it.

import { html, useEffect, useRef } from "./html.js";
import uPlot from "../vendor/uplot.js";

const HEIGHT = 170;
const WHOLE = [1, 2, 5].flatMap((digit) => [...Array(12).keys()].map((power) => digit * 10 ** power)).sort((a, b) => a - b);
const TONES = ["--own", "--peer", "--warn", "--bad"];

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/**
 * @param {{title: string, times: number[], lines: {label: string, values: number[]}[],
 *   show: (value: number) => string, isWhole?: boolean}} props times are Unix seconds
 */
export function Chart({ title, times, lines, show, isWhole }) {
  const place = useRef(null);
  const plot = useRef(null);

  useEffect(() => {
    const draw = () => {
      plot.current?.destroy();
      plot.current = new uPlot(options(place.current.clientWidth, { lines, show, isWhole }),
        [times, ...lines.map((line) => line.values)], place.current);
      tellLatest(plot.current);
    };
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const watch = new ResizeObserver(([{ contentRect }]) =>
      plot.current?.setSize({ width: contentRect.width, height: HEIGHT }));
    draw();
    watch.observe(place.current);
    dark.addEventListener("change", draw);
    return () => {
      watch.disconnect();
      dark.removeEventListener("change", draw);
      plot.current?.destroy();
    };
  }, []);

  useEffect(() => {
    plot.current.setData([times, ...lines.map((line) => line.values)]);
    tellLatest(plot.current);
  }, [times.at(-1), times.length]);

  const words = lines.map(({ label, values }) =>
    `${label}: now ${show(values.at(-1) ?? 0)}, at most ${show(Math.max(0, ...values))}`);
  return html`
    <section class="box chart"><h2>${title}</h2>
      <div role="img" aria-label=${title + ", in the last hour. " + words.join("; ")} ref=${place}></div>
    </section>`;
}

/** Show the latest values in the legend, unless the pointer is over others. */
function tellLatest(plot) {
  if (plot.cursor.idx == null) plot.setLegend({ idx: plot.data[0].length - 1 });
}

function options(width, { lines, show, isWhole }) {
  const axis = { stroke: colour("--soft"), font: "12px ui-sans-serif, system-ui, sans-serif",
    grid: { stroke: colour("--rule"), width: 1 }, ticks: { show: false } };
  const time = (seconds) => new Date(seconds * 1000).toLocaleTimeString("en-GB");
  const clock = (ticks) => ticks.map((tick) => (ticks[1] - ticks[0] < 60 ? time(tick) : time(tick).slice(0, 5)));
  return {
    width,
    height: HEIGHT,
    cursor: { y: false, points: { size: 6 } },
    hooks: { setCursor: [tellLatest] },
    padding: [8, 8, 0, 0],
    scales: { y: { range: (_, low, high) => [Math.min(0, low), high > 0 ? high * 1.1 : 1] } },
    axes: [
      { ...axis, values: (_, ticks) => clock(ticks), space: 80, size: 30 },
      { ...axis, values: (_, ticks) => ticks.map(show), size: 68, incrs: isWhole ? WHOLE : undefined },
    ],
    series: [
      { label: "time", value: (_, at) => (at == null ? "" : time(at)) },
      ...lines.map(({ label }, i) => ({
        label,
        stroke: colour(TONES[i]),
        fill: i ? undefined : colour(TONES[0]) + "18",
        width: 1.75,
        points: { show: false },
        value: (_, value) => (value == null ? "" : show(value)),
      })),
    ],
  };
}

/** How much a total has grown in each second between two samples; 0 after a restart. */
export const rates = (times, totals) => totals.map((total, i) =>
  i === 0 ? 0 : Math.max(0, total - totals[i - 1]) / Math.max(1, times[i] - times[i - 1]));
