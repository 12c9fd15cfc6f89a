// The only module that imports the view library.
export { html, render, useEffect, useLayoutEffect, useMemo, useRef, useState, useCallback } from "../vendor/preact/htm-preact.js";
