// Where a chart's axis has its ticks. Pure.
const NICE = [1, 2, 2.5, 5, 10];

// Ticks from 0 to at least `most`, three above it: {top, ticks}. The axis ends at `top`.
export function valueTicks(most, count = 3) {
  if (!(most > 0)) return { top: 1, ticks: [] };
  const rough = most / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * NICE.find((nice) => nice * power >= rough * 0.999);
  const ticks = [];
  for (let n = 1; n <= Math.ceil(most / step - 1e-9); n += 1) ticks.push(n * step);
  return { top: ticks.at(-1), ticks };
}

// Decades and thirds of them between two logarithmic ends.
export function logTicks(low, high) {
  const ticks = [];
  for (let decade = 10 ** Math.floor(Math.log10(low)); decade <= high; decade *= 10) {
    for (const nice of [1, 3]) if (decade * nice >= low * 0.999 && decade * nice <= high * 1.001) ticks.push(decade * nice);
  }
  return ticks;
}

// The parts of a line that lie above a limit, as closed polygons one after another with null between them: {x, y}. Where it
// crosses the limit is interpolated; a missing value ends a part.
export function above(values, xs, limit) {
  const x = [];
  const y = [];
  let open = false;
  const shut = (at) => {
    if (open) {
      x.push(at, null);
      y.push(limit, null);
    }
    open = false;
  };
  values.forEach((value, index) => {
    const before = values[index - 1];
    const cross = () => xs[index - 1] + ((xs[index] - xs[index - 1]) * (limit - before)) / (value - before);
    if (value == null) return shut(xs[index - 1]);
    if (value > limit && !open) {
      x.push(before == null ? xs[index] : cross());
      y.push(limit);
      open = true;
    } else if (value <= limit) return shut(open ? cross() : xs[index]);
    if (open) {
      x.push(xs[index]);
      y.push(value);
    }
    return undefined;
  });
  shut(xs.at(-1));
  return { x, y };
}
