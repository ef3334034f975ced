// Reason codes of routes in the viewer's language: what controlplane/core/reasons.py says of each (a test compares them).
import { gettext } from "./i18n.js";

const SENTENCES = {
  monolithic: gettext("The model's mode is monolithic."),
  disaggregated: gettext("The model's mode is disaggregated and a prefill and a decode engine were ready."),
  conditional_remote: gettext("Mode conditional: uncached tokens reached both thresholds, and a split costs less waiting."),
  conditional_short: gettext("Mode conditional: the uncached part of the prompt is under min_uncached_tokens."),
  conditional_cached: gettext("Mode conditional: the uncached share of the prompt is under min_uncached_ratio."),
  conditional_local: gettext("Mode conditional: one engine answers sooner, the answers it holds up meanwhile included."),
  conditional_no_pair: gettext("Mode conditional: no prefill and decode engine that fit each other were ready."),
  unsupported_split: gettext("It cannot be split rightly (n > 1, a list of prompts, prompt logprobs, echo, images, …)."),
  whole_endpoint: gettext("This path is never split (embeddings, responses, messages, score, rerank)."),
  canary_unavailable: gettext("Its session is the canary's, which had no usable engine or pair: main's engines served it."),
  prefill_unavailable: gettext("No prefill engine was usable and the model is not strict: one engine did all."),
  decode_unavailable: gettext("No decode engine was usable and the model is not strict: one engine did all."),
  prefill_lost: gettext("The prefill leg failed; on_prefill_loss let one engine compute the prompt again."),
  decode_lost: gettext("The decode leg failed before its first byte and no other decode engine was left."),
  kv_lost: gettext("The KV cache of the first prefill expired or could not be trusted; the prompt was computed again."),
  no_kv: gettext("The prefill leg left no KV to pull (it ended at its first token); the decode engine computed the prompt."),
  router: gettext("Answered by the router itself."),
  unknown_path: gettext("The path is not on the closed list."),
  wrong_method: gettext("The path does not take this method."),
  bad_request: gettext("The request is malformed."),
  too_large: gettext("The head or the body is over its limit."),
  unknown_model: gettext("The routing table has no such model."),
  unauthorized: gettext("An API key is needed and was missing or wrong."),
  forbidden: gettext("The API key does not cover this model or priority."),
  rate_limited: gettext("The team of the API key has used up its requests or tokens of this minute."),
  no_engine: gettext("No engine that could serve the request was usable."),
  engine_fault: gettext("The engines that were tried failed."),
  engine_timeout: gettext("The engine did not answer in time."),
  stopping: gettext("This router is being stopped."),
};

// Codes of a route that changed on the way, or was never taken.
const CHANGED = ["canary_unavailable", "prefill_unavailable", "decode_unavailable", "prefill_lost", "decode_lost", "kv_lost", "no_kv", "no_engine", "engine_fault", "engine_timeout", "stopping"];

export const reasonSentence = (code) => SENTENCES[code] ?? "";
export const isChanged = (code) => CHANGED.includes(code);
export const reasonCodes = Object.keys(SENTENCES);
