// The advisor's answer as a file: the document as it is, or its figures as a table for a spreadsheet.
const FORMULA = /^[=+\-@\t\r\n＝＋－＠]/; // a text that begins so is a formula to a spreadsheet

const cell = (value) => {
  if (value == null) return "";
  const words = typeof value === "string" && FORMULA.test(value) ? `'${value}` : String(value);
  return /[",\r\n]/.test(words) ? `"${words.replaceAll('"', '""')}"` : words;
};

// Lines of {part, of, name, value, unit, words}.
function* lines({ verdict, mode, sentence, checks, gain, forecasts, flips, transfer, inputs, charts }) {
  yield ["verdict", "", "verdict", verdict, "", sentence];
  yield ["verdict", "", "mode", mode, "", ""];
  for (const [name, value] of Object.entries(inputs)) {
    if (value !== null && typeof value === "object") for (const [inner, each] of Object.entries(value)) yield ["input", name, inner, each, name === "prices" ? "US$/GPU h" : "ms", ""];
    else yield ["input", "", name, value, "", ""];
  }
  for (const [name, value] of Object.entries(transfer)) yield ["transfer", "", name, value, "", ""];
  for (const each of checks) yield ["check", each.name, each.state, each.value, each.unit, each.sentence];
  if (gain) for (const name of ["ratio", "low", "high"]) yield ["gain", gain.mode, name, gain[name], "share", gain.sentence];
  const units = { requests_per_second: "1/s", low: "1/s", high: "1/s", ttft_p99_ms: "ms", itl_p99_ms: "ms", attained: "share", cost_per_million_tokens: "US$" };
  for (const each of forecasts) for (const [name, unit] of Object.entries(units)) yield ["forecast", each.mode, name, each[name], unit, each.layout];
  for (const each of charts.splits?.layouts ?? []) {
    const layout = each.pools.map((pool) => `${pool.role} ${pool.engines}xTP${pool.gpus_per_engine}`).join(" + ");
    for (const [name, unit] of [["gpus", "1"], ["ttft_p99_ms", "ms"], ["itl_p99_ms", "ms"], ["cost_per_hour", "US$"], ["cost_per_million_tokens", "US$"]]) yield ["split", each.mode, name, each[name], unit, layout];
  }
  for (const each of flips) yield ["would change", each.input, each.verdict, each.value, "", each.sentence];
}

export function csvOf(advice) {
  const rows = [["part", "of", "name", "value", "unit", "words"], ...lines(advice)];
  return `\ufeff${rows.map((row) => `${row.map(cell).join(",")}\r\n`).join("")}`;
}

// Gives the browser a file to keep.
export function save(name, type, content) {
  const anchor = document.createElement("a");
  anchor.href = URL.createObjectURL(new Blob([content], { type }));
  anchor.download = name;
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(anchor.href), 10_000);
}
