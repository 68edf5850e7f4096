// The token strip: the tokens of an answer and of its forks, one column a position, so that branches stay aligned.

import { forkObstacle, tokenTexts } from "./answer.js";
import { imagesOf, keptUrl } from "./images.js";
import { count, createStore, probability, useKeys, useStore } from "./ui.js";
import { Component, html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./vendor/standalone.mjs";

const PAGE = 600; // columns that are shown at first
const PROMPT_CHIPS = 120; // of a prompt that are shown at first
const BLOCK = 40; // columns that are drawn together
const ENTROPY_STEPS = [0.05, 0.3, 0.8, 1.5, 2.5]; // nats: colours change there
const SURPRISE_STEPS = [0.1, 0.5, 1.5, 3, 5]; // nats: minus the log-probability
const look = createStore("strip", { colour: "entropy", showsPrompt: false });

const ORIGINS = {
  forced: { mark: "»", label: "forced by the grammar" },
  accepted: { mark: "✓", label: "a guess that was verified" },
  chosen: { mark: "◆", label: "chosen by you" },
};
const LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";
const letter = (row) => LETTERS[row] ?? String(row + 1);

/** Show spaces at the edges, line ends and control characters of a token. */
export function visible(text) {
  if (text === "" || text === null) return "∅";
  return text
    .replace(/^ +| +$/g, (spaces) => "·".repeat(spaces.length))
    .replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(/\r/g, "␍")
    .replace(/[\u0000-\u001f\u007f]/g, (char) => `\\x${char.charCodeAt(0).toString(16).padStart(2, "0")}`);
}

function heat(token, colour) {
  const [value, steps] = colour === "entropy" ? [token.entropy, ENTROPY_STEPS]
    : colour === "surprise" ? [token.logprob === null ? null : -token.logprob, SURPRISE_STEPS] : [null, []];
  return value === null ? 0 : steps.filter((step) => value >= step).length;
}

const exp = (logprob) => (logprob === null ? null : Math.exp(logprob));

function describe(token) {
  const parts = [`token ${JSON.stringify(token.text)}`];
  if (token.logprob !== null) parts.push(`probability ${probability(exp(token.logprob))}`);
  if (token.masked_logprob !== null) parts.push(`after the mask ${probability(exp(token.masked_logprob))}`);
  if (ORIGINS[token.origin]) parts.push(ORIGINS[token.origin].label);
  return parts.join(", ");
}

/** Some columns, one a position, with a chip for each branch that has a token of its own there. Only drawn again when one changes. */
class Block extends Component {
  shouldComponentUpdate(next) {
    const { props } = this;
    return ["colour", "active", "opened", "end"].some((name) => next[name] !== props[name]) || next.rows.length !== props.rows.length ||
      next.rows.some(({ tokens }, row) => {
        const before = props.rows[row].tokens;
        for (let index = next.begin; index < next.end; index++) if (tokens[index] !== before[index]) return true;
        return false;
      });
  }

  render({ rows, begin, end, colour, active, opened }) {
    const columns = [];
    for (let index = begin; index < end; index++) {
      columns.push(html`<div key=${index} class="col">
        ${rows.map(({ tokens, start }, row) => {
          const token = tokens[index];
          if (index < start || !token) return html`<span key=${row} class=${index < start ? "shared" : "none"}></span>`;
          const at = `${row}.${index}`;
          return html`<button key=${row} type="button" class=${`chip heat-${heat(token, colour)} ${token.origin ?? ""}`} data-row=${row} data-index=${index}
              tabindex=${active === at ? 0 : -1} aria-label=${describe(token)} aria-haspopup="dialog" aria-expanded=${opened === at}>
            ${rows.length > 1 && start === index ? html`<span class="letter">${letter(row)}</span>` : null}
            <span class="text">${visible(token.text)}</span>
            ${ORIGINS[token.origin] ? html`<span class="mark" aria-hidden="true">${ORIGINS[token.origin].mark}</span>` : null}
            <${Bars} token=${token} />
          </button>`;
        })}
      </div>`);
    }
    return html`<div class="block">${columns}</div>`;
  }
}

/** Probability before the mask (outlined) and after it (solid). */
function Bars({ token, wide }) {
  const before = exp(token.logprob);
  const after = exp(token.masked_logprob);
  if (before === null) return null;
  return html`<span class=${wide ? "bars wide" : "bars"} aria-hidden="true">
    <span class="before" style=${{ width: `${100 * before}%` }}></span>
    ${after === null ? null : html`<span class="after" style=${{ width: `${100 * after}%` }}></span>`}
  </span>`;
}

/** `family`: the answer and its forks. `onFork(answer, at, chosen)` makes another branch; `chosen` is an alternative or a text. */
export function Strip({ family, onFork, allowedAt }) {
  const { colour, showsPrompt } = useStore(look);
  const [active, setActive] = useState({ row: 0, index: 0 });
  const [opened, setOpened] = useState(null);
  const [shown, setShown] = useState(PAGE);
  const strip = useRef(null);
  const length = Math.max(...family.map(({ tokens }) => tokens.length));
  const starts = family.map(({ from }) => from?.at ?? 0);
  const focus = (at) => {
    setActive(at);
    chipOf(strip.current, at)?.focus();
  };
  const close = () => {
    setOpened(null);
    if (opened) chipOf(strip.current, opened)?.focus();
  };
  const onKeyDown = (event) => {
    if (!event.target.classList.contains("chip")) return;
    const to = moved(event.key, active, family, starts, Math.min(length, shown));
    if (!to) return;
    event.preventDefault();
    focus(to);
  };
  const onClick = (event) => {
    const chip = event.target.closest(".chip[data-row]");
    if (!chip) return;
    const at = { row: Number(chip.dataset.row), index: Number(chip.dataset.index) };
    setActive(at);
    setOpened(opened?.row === at.row && opened?.index === at.index ? null : at);
  };
  const end = Math.min(length, shown);
  const rows = family.map(({ tokens }, row) => ({ tokens, start: starts[row] }));
  const blocks = [];
  for (let begin = 0; begin < end; begin += BLOCK) {
    const isIn = (at) => at && at.index >= begin && at.index < begin + BLOCK;
    blocks.push(html`<${Block} key=${begin} rows=${rows} begin=${begin} end=${Math.min(end, begin + BLOCK)} colour=${colour}
      active=${isIn(active) ? `${active.row}.${active.index}` : null} opened=${isIn(opened) ? `${opened.row}.${opened.index}` : null} />`);
  }
  const answer = opened && family[opened.row];
  return html`<div class="strip">
    <div class="row strip-head">
      <${Legend} family=${family} colour=${colour} />
      <span class="grow"></span>
      <label class="inline small muted">colour
        <select value=${colour} onChange=${(event) => look.set({ colour: event.target.value })}>
          <option value="entropy">entropy</option><option value="surprise">surprise</option><option value="none">none</option>
        </select>
      </label>
      ${family[0].promptIds ? html`<label class="inline small muted"><input type="checkbox" checked=${showsPrompt} onChange=${(event) => look.set({ showsPrompt: event.target.checked })} />prompt</label>` : null}
    </div>
    ${showsPrompt && family[0].promptIds ? html`<${PromptTokens} answer=${family[0]} />` : null}
    <div class="columns" ref=${strip} role="group" aria-label="Tokens" onKeyDown=${onKeyDown} onClick=${onClick}>
      ${blocks}
      ${opened && answer?.tokens[opened.index]
        ? html`<${Popover} key=${`${opened.row}.${opened.index}`} answer=${answer} at=${opened} onClose=${close} strip=${strip} allowedAt=${allowedAt}
            onFork=${(alternative) => (setOpened(null), onFork(answer, opened.index, alternative))} />`
        : null}
    </div>
    ${length > shown ? html`<button type="button" class="quiet" onClick=${() => setShown(shown + PAGE)}>Show ${Math.min(PAGE, length - shown)} more of ${length} tokens</button>` : null}
  </div>`;
}

const chipOf = (strip, { row, index }) => strip?.querySelector(`.chip[data-row="${row}"][data-index="${index}"]`);

/** Return where an arrow key leads, or null. */
function moved(key, { row, index }, family, starts, length) {
  const has = (r, i) => r >= 0 && r < family.length && i >= starts[r] && i < Math.min(length, family[r].tokens.length);
  const sideways = { ArrowRight: 1, ArrowLeft: -1 }[key];
  if (sideways) {
    if (has(row, index + sideways)) return { row, index: index + sideways };
    // Left of its first token a branch goes on in the answer that it left.
    const parent = family.findIndex(({ id }) => id === family[row].from?.id);
    return sideways < 0 && index > 0 && parent >= 0 ? { row: ancestorAt(family, starts, parent, index - 1), index: index - 1 } : null;
  }
  const rows = { ArrowDown: family.map((_, r) => r).slice(row + 1), ArrowUp: family.map((_, r) => r).slice(0, row).reverse() }[key];
  if (rows) {
    const found = rows.find((r) => has(r, index));
    return found === undefined ? null : { row: found, index };
  }
  if (key === "Home") return { row: 0, index: 0 };
  if (key === "End") return { row, index: Math.min(length, family[row].tokens.length) - 1 };
  return null;
}

function ancestorAt(family, starts, row, index) {
  while (index < starts[row]) row = family.findIndex(({ id }) => id === family[row].from.id);
  return row;
}

function Legend({ family, colour }) {
  const tokens = family.flatMap(({ tokens: all }) => all);
  const origins = Object.keys(ORIGINS).filter((name) => tokens.some(({ origin }) => origin === name));
  const hasMask = tokens.some(({ masked_logprob }) => masked_logprob !== null);
  const steps = colour === "entropy" ? ENTROPY_STEPS : SURPRISE_STEPS;
  return html`<div class="legend small muted">
    ${colour === "none" ? null : html`<span class="scale" title=${`${colour} in nats`}>${colour}
      ${[0, ...steps].map((step, index) => html`<span key=${index} class=${`swatch heat-${index}`}>${index === steps.length ? `${step}+` : step}</span>`)} nats</span>`}
    ${hasMask || tokens.some(({ logprob }) => logprob !== null) ? html`<span class="key"><i class="sample before"></i>model's probability</span>` : null}
    ${hasMask ? html`<span class="key"><i class="sample after"></i>after the mask</span>` : null}
    ${origins.map((name) => html`<span key=${name} class="key"><b>${ORIGINS[name].mark}</b>${ORIGINS[name].label}</span>`)}
  </div>`;
}

/** Return the chips of a prompt: {index, num, image}. All tokens of an image are one; `image` is its number, else null. */
function promptChips(promptIds, imagePlaces) {
  const chips = [];
  let place = 0;
  for (let index = 0; index < promptIds.length; ) {
    const [begin, end] = imagePlaces[place] ?? [];
    const isImage = index === begin;
    chips.push({ index, num: isImage ? end - begin : 1, image: isImage ? place++ : null });
    index = isImage ? end : index + 1;
  }
  return chips;
}

function ImageChip({ number, num, url }) {
  const named = `image ${number + 1}: ${count(num)} tokens`;
  return html`${url && html`<img src=${url} alt="" />`}<span class="text">${named}</span>`;
}

function PromptTokens({ answer }) {
  const { promptIds, imagePlaces, usage, request } = answer;
  const [texts, setTexts] = useState(null);
  const [all, setAll] = useState(false);
  const chips = useMemo(() => promptChips(promptIds, imagePlaces), [promptIds, imagePlaces]);
  const first = all ? 0 : Math.max(0, chips.length - PROMPT_CHIPS);
  const cached = usage?.prompt_tokens_details?.cached_tokens ?? 0;
  const images = imagesOf(request.body);
  useEffect(() => {
    let over = false;
    const show = (found) => !over && setTexts(new Map(shown.map(({ index }, at) => [index, found[at] ?? ""])));
    const shown = chips.slice(first).filter(({ image }) => image === null);
    tokenTexts(shown.map(({ index }) => promptIds[index])).then(show, () => show([]));
    return () => (over = true);
  }, [promptIds, chips, first]);
  return html`<div class="columns prompt-tokens" aria-label="Tokens of the prompt">
    <span class="small muted caption">prompt: ${promptIds.length} tokens, ${cached} cached ${first ? html`<button type="button" class="quiet small" onClick=${() => setAll(true)}>show all</button>` : null}</span>
    ${texts && chips.slice(first).map(({ index, num, image }) => html`<span key=${index} class=${`chip ${image === null ? "" : "image"} ${index < cached ? "cached" : ""}`}
      title=${index < cached ? "from the prefix cache" : "computed for this request"}>
      ${image === null ? html`<span class="text">${visible(texts.get(index) ?? "")}</span>` : html`<${ImageChip} number=${image} num=${num} url=${images[image] ? keptUrl(images[image]) : null} />`}</span>`)}
  </div>`;
}

/** A token's numbers and its alternatives. Arrows choose one, Enter forks there. */
function Popover({ answer, at, onClose, onFork, strip, allowedAt }) {
  const token = answer.tokens[at.index];
  const box = useRef(null);
  const [place, setPlace] = useState({});
  const [allowed, setAllowed] = useState(null);
  const [typed, setTyped] = useState("");
  const obstacle = forkObstacle(answer);
  const listed = token.top_logprobs.some(({ id, token: text }) => (id === null ? text === token.text : id === token.id));
  const own = { token: token.text, id: token.id, logprob: token.logprob, masked_logprob: token.masked_logprob, allowed: true };
  const alternatives = listed ? token.top_logprobs : [own, ...token.top_logprobs];
  const isOwn = ({ id, token: text }) => (id === null ? text === token.text : id === token.id);
  const [chosen, setChosen] = useState(Math.max(0, alternatives.findIndex(isOwn)));
  useLayoutEffect(() => {
    const chip = chipOf(strip.current, at);
    const left = Math.max(0, Math.min(chip.offsetLeft, strip.current.clientWidth - box.current.offsetWidth));
    setPlace({ left: `${left}px`, top: `${chip.offsetTop + chip.offsetHeight + 4}px` });
    box.current.querySelector("[role=listbox]")?.focus({ preventScroll: true });
  }, []);
  useLayoutEffect(() => box.current.scrollIntoView({ block: "nearest" }), [place]);
  useEffect(() => {
    const onPointer = (event) => {
      if (!box.current?.contains(event.target) && !event.target.closest?.(".chip[data-row]")) onClose();
    };
    addEventListener("pointerdown", onPointer);
    return () => removeEventListener("pointerdown", onPointer);
  }, [onClose]);
  useKeys({ Escape: () => (onClose(), true) }); // also when the focus went with a button that was replaced
  const fork = (index) => {
    const alternative = alternatives[index];
    if (!obstacle && alternative && alternative.allowed !== false && alternative.id !== null) onFork(alternative);
  };
  const onKeyDown = (event) => {
    const isListed = event.target.getAttribute("role") === "listbox";
    const step = isListed && { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) setChosen(Math.max(0, Math.min(alternatives.length - 1, chosen + step)));
    else if (event.key === "Enter" && isListed) fork(chosen);
    else if (event.key === "Escape") onClose();
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  const facts = [
    ["id", token.id],
    ["model", token.logprob === null ? null : probability(exp(token.logprob))],
    ["masked", token.masked_logprob === null ? null : probability(exp(token.masked_logprob))],
    ["mask leaves", token.allowed_mass === null ? null : probability(token.allowed_mass)],
    ["allowed tokens", token.num_allowed],
    ["entropy", token.entropy === null ? null : `${token.entropy.toFixed(3)} nats`],
    ["origin", token.origin],
  ].filter(([, value]) => value !== null && value !== undefined);
  return html`<div class="popover" ref=${box} style=${place} role="dialog" aria-label=${describe(token)} onKeyDown=${onKeyDown}>
    <div class="row"><b class="mono token">${visible(token.text)}</b><span class="grow"></span>
      <button type="button" class="quiet icon" aria-label="Close" onClick=${onClose}>✕</button></div>
    <dl class="facts small">${facts.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>
    <div class="alternative head small muted" aria-hidden="true"><span>token</span><span></span><span class="number">model</span><span class="number">masked</span></div>
    <div class="alternatives" role="listbox" tabindex="0" aria-label="Alternatives" aria-activedescendant=${`alternative-${chosen}`}>
      ${alternatives.map((each, index) => html`<div key=${index} id=${`alternative-${index}`} role="option" aria-selected=${index === chosen} aria-disabled=${each.allowed === false}
          class=${`alternative ${each.allowed === false ? "refused" : ""} ${isOwn(each) ? "own" : ""}`}
          title=${obstacle ?? (each.allowed === false ? "The grammar or a token rule refuses this token here" : isOwn(each) ? "Go on from this token again" : "Fork here")}
          onClick=${() => (setChosen(index), fork(index))}>
        <span class="mono token">${visible(each.token)}</span>
        <${Bars} token=${each} wide />
        <span class="number small">${each.logprob === null ? "" : probability(exp(each.logprob))}</span>
        <span class="number small">${each.masked_logprob === null ? (each.allowed === false ? "0" : "") : probability(exp(each.masked_logprob))}</span>
      </div>`)}
    </div>
    ${obstacle ? html`<p class="small muted">${obstacle}</p>` : html`<form class="row" onSubmit=${(event) => (event.preventDefault(), typed && onFork(typed))}>
      <input class="grow mono" name="typed" aria-label="A text of your own" placeholder="or a text of your own" value=${typed} onInput=${(event) => setTyped(event.target.value)} />
      <button type="submit" disabled=${!typed}>Fork</button></form>
      <p class="small muted">Enter or a click forks here, with the same seed.</p>`}
    ${allowedAt ? html`<div class="small">${allowed ?? html`<button type="button" class="quiet small" onClick=${async () => setAllowed(await allowedAt(answer, at.index))}>What was allowed here?</button>`}</div>` : null}
  </div>`;
}
