// The radix tree as rectangles: a node's width is its tokens, from where its parent ends; its height its share of the leaves.

import { hierarchy, partition } from "./vendor/d3-hierarchy.min.mjs";

const STUB = 0.03; // width of what stands for children that were not sent

/** The nodes that the server has told of, and what happened to them lately. */
export class TreeStore {
  constructor() {
    this.nodes = new Map();
    this.totals = null;
    this.happened = { hit_tokens: 0, computed_tokens: 0, evicted_tokens: 0, demoted_tokens: 0 };
    this.flashes = new Map(); // by node id: {kind: "hit" | "new", at}
    this.gone = []; // {id, at}: evicted nodes, which fade where they stood
  }

  /** Apply a TreeMessage that came at `now`, in milliseconds. */
  apply(message, now) {
    this.totals = message.totals;
    if (message.full) {
      this.nodes = new Map(message.nodes.map((node) => [node.id, { ...node, seen: now }]));
      this.flashes.clear();
      this.gone = [];
    } else {
      for (const id of message.removed) if (this.nodes.delete(id)) this.gone.push({ id, at: now });
      for (const node of message.nodes) {
        const before = this.nodes.get(node.id);
        if (!before) this.flashes.set(node.id, { kind: "new", at: now });
        else if (node.hits > before.hits) this.flashes.set(node.id, { kind: "hit", at: now });
        this.nodes.set(node.id, { ...node, seen: now });
      }
      for (const [name, tokens] of Object.entries(message.events ?? {})) this.happened[name] += tokens;
    }
  }

  /** Forget what happened before a time. */
  expire(before) {
    for (const [id, { at }] of this.flashes) if (at < before) this.flashes.delete(id);
    this.gone = this.gone.filter(({ at }) => at >= before);
  }

  /** Return the ids from a root to a node. */
  pathTo(id) {
    const path = [];
    for (let at = id; at !== null && at !== undefined && this.nodes.has(at); at = this.nodes.get(at).parent) path.unshift(at);
    return path;
  }
}

/** Return the boxes of a subtree, parents first: [{node, hidden, x, width, y, height, tokensBefore, parent: index, children: [index]}].
 *
 * All numbers are shares of the whole but `tokensBefore`. A box with `hidden`, [nodes, tokens], stands for children of
 * `node` that were not sent. `root` null: all trees, one below the other. `isLog`: widths by the logarithm of the tokens.
 */
export function layout(nodes, root, isLog) {
  const children = new Map();
  const roots = [];
  for (const node of nodes.values()) {
    if (node.parent !== null && nodes.has(node.parent)) {
      const siblings = children.get(node.parent);
      if (siblings) siblings.push(node);
      else children.set(node.parent, [node]);
    } else roots.push(node);
  }
  const below = (item) => {
    if (item.hidden) return null;
    const found = (item.top ?? children.get(item.node.id) ?? []).map((node) => ({ node }));
    if (!item.top && item.node.hidden?.[0] > 0) found.push({ node: item.node, hidden: item.node.hidden });
    return found.length ? found : null;
  };
  const top = root !== null && nodes.has(root) ? [nodes.get(root)] : roots.sort((a, b) => a.id - b.id);
  const tree = hierarchy({ top }, below)
    .sum((item) => (item.hidden ? 1 + Math.log2(item.hidden[0]) / 2 : below(item) ? 0 : 1))
    .sort((a, b) => !!a.data.hidden - !!b.data.hidden || a.data.node.id - b.data.node.id);
  partition().size([1, 1])(tree);
  const size = ({ node, hidden }) => (hidden ? 0 : isLog ? Math.log2(1 + node.tokens) : node.tokens);
  const boxes = [];
  let whole = 0;
  tree.eachBefore((at) => {
    if (at.depth === 0) return;
    const above = at.depth > 1 ? boxes[at.parent.index] : null;
    at.index = boxes.length;
    const x = above ? above.x + above.width : 0;
    const box = { ...at.data, x, width: size(at.data), y: at.x0, height: at.x1 - at.x0, tokensBefore: above ? above.tokensBefore + above.node.tokens : 0, parent: above ? at.parent.index : null, children: [] };
    above?.children.push(boxes.length);
    boxes.push(box);
    whole = Math.max(whole, x + box.width);
  });
  for (const box of boxes) {
    box.x = (box.x / (whole || 1)) * (1 - STUB);
    box.width = box.hidden ? STUB : (box.width / (whole || 1)) * (1 - STUB);
  }
  return boxes;
}
