// The text of PDF files, from pdf.js.

// The text of all pages, each after a line with its number. `onPage` gets that number and the number of pages.
export async function textOfPdf(file, onPage) {
  const pdfjs = await import("./pdfjs/pdf.mjs");
  const folder = new URL("pdfjs/", import.meta.url);
  pdfjs.GlobalWorkerOptions.workerSrc = new URL("pdf.worker.mjs", folder).href;
  const task = pdfjs.getDocument({
    data: new Uint8Array(await file.arrayBuffer()), cMapUrl: new URL("cmaps/", folder).href, useWasm: false, verbosity: 0,
  });
  const pages = [];
  try {
    const pdf = await task.promise;
    for (let n = 1; n <= pdf.numPages; ++n) {
      onPage(n, pdf.numPages);
      const page = await pdf.getPage(n);
      const { items } = await page.getTextContent();
      const text = items.map(({ str, hasEOL }) => str + (hasEOL ? "\n" : "")).join("").trim();
      if (text) pages.push(`[page ${n}]\n\n${text}\n`);
      page.cleanup();
    }
  } catch (error) {
    throw new Error(`${file.name} ` + (error.name === "PasswordException"
      ? "is encrypted. Save it without a password first."
      : "is damaged. Open it in a PDF viewer and save it again."), { cause: error });
  } finally {
    await task.destroy();
  }
  if (!pages.length) throw new Error(`${file.name} has no text, only images. Run a text recognition (OCR) on it first.`);
  return pages.join("\n");
}
