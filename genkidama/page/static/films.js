// Films of the policy: the newest one, or the one that somebody chooses.

import { element, find, mark, reveal, say } from "./dom.js";
import * as words from "./words.js";

let chosen = null;
let shown = [];

const title = (film) => `${words.clock(film.time)} · return ${words.score(film.mean_return)}`;

function draw() {
  const root = find("film");
  if (!root.firstChild) {
    root.append(
      element("video", {
        controls: true,
        preload: "metadata",
        playsinline: true,
        "aria-describedby": "film-title",
      }),
      element("p", { id: "film-title", class: "soft" }),
      element(
        "label",
        {},
        "film ",
        element("select", {
          onchange: (event) => {
            chosen = event.target.value;
            draw();
          },
        }),
      ),
    );
  }
  const [video, text, label] = root.children;
  const film = shown.find(({ url }) => url === chosen) ?? shown[0];
  // What somebody watches goes on while newer films come.
  const busy = !video.paused && !video.ended && chosen === null && video.hasAttribute("src");
  if (!busy) {
    mark(video, "src", film.url.replace(/^\//, ""));
    say(text, title(film));
  }
  reveal(label, shown.length > 1);
  const list = label.lastChild;
  const urls = [...list.options].map((option) => option.value).join();
  if (urls !== shown.map(({ url }) => url).join()) {
    list.replaceChildren(
      ...shown.map((one) => element("option", { value: one.url, text: title(one) })),
    );
  }
  list.value = film.url;
}

export function show({ films }) {
  shown = [...films].sort((a, b) => b.time - a.time);
  reveal(find("films"), shown.length > 0);
  if (shown.length) draw();
}
