// Images of a chat. Messages and requests name them by `kept:ID`; their data URLs are put in when a request is sent or copied.

import { bytes } from "./ui.js";
import { html, useEffect } from "./vendor/standalone.mjs";

const TYPES = ["image/png", "image/jpeg", "image/webp", "image/gif"];
const STORED = "ramiform.image.";
const KEPT = "kept:";
const urls = new Map(); // data URLs by id

/** Keep a file. Resolves to an image, {id, name, size}. Rejects a file that models do not read. */
export async function keepImage(file, maxBytes) {
  const name = file.name || "pasted image";
  if (!TYPES.includes(file.type)) throw new Error(`${name} is no PNG, JPEG, WebP or GIF`);
  if (file.size > maxBytes) throw new Error(`${name} has ${bytes(file.size)}, the most are ${bytes(maxBytes)} (--max-image-bytes)`);
  const url = await new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(new Error(`${name} cannot be read`));
    reader.readAsDataURL(file);
  });
  const image = { id: crypto.getRandomValues(new Uint32Array(2)).join("-"), name, size: file.size };
  urls.set(image.id, url);
  try {
    sessionStorage.setItem(STORED + image.id, url);
  } catch {
    // The quota is spent: a reload loses it.
  }
  return image;
}

/** Forget all images. */
export function forgetImages() {
  urls.clear();
  for (const key of Object.keys(sessionStorage)) if (key.startsWith(STORED)) sessionStorage.removeItem(key);
}

/** Return an image's data URL; null: a reload has lost it. */
export const urlOfImage = (id) => urls.get(id) ?? sessionStorage.getItem(STORED + id);

/** Return a message's content in OpenAI's form: a text, or parts with its images first. */
export function contentOf({ text, images = [] }) {
  if (!images.length) return text;
  const parts = images.map(({ id, name }) => ({ type: "image_url", image_url: { url: KEPT + id }, name }));
  return text ? [...parts, { type: "text", text }] : parts;
}

/** Return the images of a request as they are named in it, in order. */
export const imagesOf = ({ messages = [], image_data: data = [] }) =>
  [...data, ...messages.flatMap(({ content }) => (Array.isArray(content) ? content.filter(({ type }) => type === "image_url").map(({ image_url: { url } }) => url) : []))];

/** Return the data URL of an image as a request names it, or null. */
export const keptUrl = (named) => urlOfImage(named.slice(KEPT.length));

/** Return {body, lost}: the body as it is sent, without images that a reload has lost, and the names of these. */
export function withImages(body) {
  if (!imagesOf(body).length) return { body, lost: [] };
  const lost = [];
  const part = ({ name, ...each }) => {
    if (each.type !== "image_url") return each;
    const url = keptUrl(each.image_url.url);
    if (url === null) lost.push(name);
    return url === null ? null : { type: "image_url", image_url: { url } };
  };
  const sent = { ...body };
  if (body.messages) sent.messages = body.messages.map((message) => (Array.isArray(message.content) ? { ...message, content: message.content.map(part).filter(Boolean) } : message));
  if (body.image_data) {
    lost.push(...body.image_data.filter((named) => keptUrl(named) === null).map(() => "an image"));
    sent.image_data = body.image_data.map(keptUrl).filter(Boolean);
  }
  return { body: sent, lost };
}

/** Images in a row. `onRemove(id)`: each has a button. */
export function Images({ images = [], onRemove }) {
  if (!images.length) return null;
  return html`<div class="images row">${images.map(({ id, name, size }) => {
    const named = `${name}, ${bytes(size)}`;
    const url = urlOfImage(id);
    return html`<figure key=${id} class="kept-image" title=${named}>
      ${url ? html`<img src=${url} alt=${named} />` : html`<span class="small muted">${named}: lost by a reload</span>`}
      ${onRemove ? html`<button type="button" class="quiet icon" aria-label=${`Remove ${name}`} onClick=${() => onRemove(id)}>✕</button>` : null}
    </figure>`;
  })}</div>`;
}

const filesOf = (transfer) => [...(transfer?.files ?? [])];

/** A button that chooses files. Files that are dropped anywhere on the page, or pasted, come too. */
export function ImagePicker({ onFiles }) {
  useEffect(() => {
    const onDragOver = (event) => event.dataTransfer?.types.includes("Files") && event.preventDefault();
    const take = (transfer, event) => {
      const files = filesOf(transfer);
      if (!files.length) return;
      event.preventDefault();
      onFiles(files);
    };
    const onDrop = (event) => take(event.dataTransfer, event);
    const onPaste = (event) => event.clipboardData?.types.includes("text/plain") || take(event.clipboardData, event);
    const heard = [["dragover", onDragOver], ["drop", onDrop], ["paste", onPaste]];
    for (const [name, handler] of heard) addEventListener(name, handler);
    return () => {
      for (const [name, handler] of heard) removeEventListener(name, handler);
    };
  }, [onFiles]);
  const onChange = (event) => {
    onFiles([...event.target.files]);
    event.target.value = ""; // the same file may be chosen again
  };
  return html`<label class="button small" title="PNG, JPEG, WebP or GIF; also by dropping or pasting">Image
    <input class="hidden-file" type="file" name="image" accept=${TYPES.join(",")} multiple onChange=${onChange} /></label>`;
}
