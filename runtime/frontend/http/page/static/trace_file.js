// Trace files: what `ramiform trace --save` writes and what this page saves. Perfetto reads them too.

const MAX_BYTES = 200e6;
const CAUSED = ["text", "samples", "tokens", "finish", "timings"]; // of an operation, for Perfetto's arguments

/** Return the ProgramViews of a file. `already` is how many came from files before: their ids count on. */
export async function openFile(file, already) {
  if (file.size > MAX_BYTES) throw new Error(`${file.name} is larger than ${MAX_BYTES / 1e6} MB`);
  let content;
  try {
    content = JSON.parse(await file.text());
  } catch (error) {
    throw new Error(`${file.name} is not JSON: ${error.message}`);
  }
  const views = content?.programs;
  if (!Array.isArray(views) || !views.length || !views.every(isView)) throw new Error(`${file.name} is not a trace that ramiform has saved, or of a version that saved no times by cause`);
  return views.map((view, index) => ({ ...view, id: `file-${already + index + 1}`, seq: -1 }));
}

function isView(view) {
  const isState = (state) => Number.isInteger(state?.number) && Array.isArray(state.events) && Array.isArray(state.spans);
  return typeof view?.title === "string" && Array.isArray(view.lines) && Array.isArray(view.states) && view.states.every(isState);
}

/** Save programs as one file. */
export function saveFile(views) {
  const content = JSON.stringify({ traceEvents: views.flatMap(chromeEvents), displayTimeUnit: "ms", ramiform: views.map(recordOf), programs: views });
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([content], { type: "application/json" }));
  link.download = `${views[0].title.replace(/[^\w.-]+/g, "-").slice(0, 60) || "trace"}.json`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

// Return what `ramiform trace FILE` reads of a program.
const recordOf = ({ title, began_at, states }) => ({ title, began_at, states: states.map(({ number, parent, begin, events }) => ({ number, parent, begin, events })) });

// Return the spans and operations of a program in the Chrome trace event format, in microseconds.
function chromeEvents(view, process) {
  const micro = (time) => Math.round(time * 1e9) / 1e3;
  const found = [{ ph: "M", pid: process, tid: 0, ts: 0, name: "process_name", args: { name: view.title } }];
  for (const { number, parent, events, spans } of view.states) {
    found.push({ ph: "M", pid: process, tid: number, ts: 0, name: "thread_name", args: { name: parent === null ? view.title : `state ${number}, of ${parent}` } });
    const slice = (name, start, end, cat, args) => found.push({ ph: "X", pid: process, tid: number, name, ts: micro(start), dur: micro(end - start), cat, args });
    for (const event of events) slice(event.name ?? event.kind, event.start, event.end ?? event.start, event.kind, { label: event.label, place: event.place, ...Object.fromEntries(CAUSED.filter((key) => event[key] != null).map((key) => [key, event[key]])) });
    for (const span of spans) slice(span.cause, span.start, span.end, span.is_gap ? "gap" : "phase", { place: span.place });
  }
  return found.sort((a, b) => a.ts - b.ts || (b.dur ?? 0) - (a.dur ?? 0));
}
