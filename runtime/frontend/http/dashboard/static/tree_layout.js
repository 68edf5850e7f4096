// The radix tree as rectangles: a node's width is its tokens, from where its parent ends; its height its share of the leaves.

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
      const { evicted_tokens = 0, demoted_tokens = 0 } = message.events ?? {};
      // Without an eviction a node was joined to another one, or gave way to one that is in use.
      for (const id of message.removed) if (this.nodes.delete(id) && evicted_tokens + demoted_tokens > 0) this.gone.push({ id, at: now });
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
  const below = ({ node, hidden }) => {
    if (hidden) return [];
    const found = (children.get(node.id) ?? []).sort((a, b) => a.id - b.id).map((child) => ({ node: child }));
    if (node.hidden?.[0] > 0) found.push({ node, hidden: node.hidden });
    return found;
  };
  const size = ({ node, hidden }) => (hidden ? 0 : isLog ? Math.log2(1 + node.tokens) : node.tokens);
  const boxes = [];
  let whole = 0;
  const waiting = (root !== null && nodes.has(root) ? [nodes.get(root)] : roots.sort((a, b) => b.id - a.id)).map((node) => ({ node, parent: null }));
  while (waiting.length) {
    const item = waiting.pop();
    const above = item.parent === null ? null : boxes[item.parent];
    const x = above ? above.x + above.width : 0;
    const box = { ...item, x, width: size(item), y: 0, height: 0, tokensBefore: above ? above.tokensBefore + above.node.tokens : 0, children: [] };
    above?.children.push(boxes.length);
    whole = Math.max(whole, x + box.width);
    for (const child of below(item).reverse()) waiting.push({ ...child, parent: boxes.length });
    boxes.push(box);
  }
  // A leaf has the height 1, its ancestors the sum of their leaves': from the last box to the first, then from the top.
  for (const box of [...boxes].reverse()) {
    if (!box.children.length) box.height = box.hidden ? 1 + Math.log2(box.hidden[0]) / 2 : 1;
    if (box.parent !== null) boxes[box.parent].height += box.height;
  }
  const all = boxes.reduce((sum, { parent, height }) => sum + (parent === null ? height : 0), 0);
  const free = new Map(); // by parent: where its next child begins
  for (const [index, box] of boxes.entries()) {
    box.y = free.get(box.parent) ?? 0;
    free.set(box.parent, box.y + box.height / all);
    free.set(index, box.y);
    box.height /= all;
    box.x = (box.x / (whole || 1)) * (1 - STUB);
    box.width = box.hidden ? STUB : (box.width / (whole || 1)) * (1 - STUB);
  }
  return boxes;
}
