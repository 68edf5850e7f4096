// Trace files: what `ramiform trace --save` writes and what this page saves, which lacks the events for Perfetto.

const MAX_BYTES = 200e6;

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
  const content = JSON.stringify({ ramiform: views.map(recordOf), programs: views });
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([content], { type: "application/json" }));
  link.download = `${views[0].title.replace(/[^\w.-]+/g, "-").slice(0, 60) || "trace"}.json`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

// Return what `ramiform trace FILE` reads of a program.
const recordOf = ({ title, began_at, states }) => ({ title, began_at, states: states.map(({ number, parent, begin, events }) => ({ number, parent, begin, events })) });
