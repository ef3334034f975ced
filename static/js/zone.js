// Times in the viewer's zone or in UTC: a choice that all pages keep.
let utc = stored();

function stored() {
  try {
    return localStorage.getItem("zone") === "utc";
  } catch {
    return false;
  }
}

export const isUtc = () => utc;

// What Intl takes.
export const timeZone = () => (utc ? "UTC" : undefined);

// "UTC", "UTC+7", "UTC−3:30": what the times on the page are in, at this moment (ms).
export function zoneName(at = Date.now()) {
  const minutes = utc ? 0 : -new Date(at).getTimezoneOffset();
  if (!minutes) return "UTC";
  const [hours, rest] = [Math.floor(Math.abs(minutes) / 60), Math.abs(minutes) % 60];
  return `UTC${minutes < 0 ? "−" : "+"}${hours}${rest ? `:${String(rest).padStart(2, "0")}` : ""}`;
}

function tell() {
  for (const label of document.querySelectorAll("[data-zone-label]")) label.textContent = zoneName();
  dispatchEvent(new Event("zonechange"));
}

export function toggleZone() {
  utc = !utc;
  try {
    localStorage.setItem("zone", utc ? "utc" : "local");
  } catch {
    // forbidden storage: the choice lasts as long as the page
  }
  tell();
}

addEventListener("storage", (event) => {
  if (event.key !== "zone" || stored() === utc) return;
  utc = stored();
  tell();
});
for (const button of document.querySelectorAll("[data-zone-toggle]")) button.addEventListener("click", toggleZone);
tell();
