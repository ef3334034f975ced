// Words in the viewer's language. The catalogue is Django's (strings.js), made from controlplane/locale/*/djangojs.po.
const { gettext: one, ngettext: many } = globalThis.django ?? {
  gettext: (text) => text,
  ngettext: (single, plural, n) => (n === 1 ? single : plural),
};

const fill = (text, params) => text.replace(/%\((\w+)\)s/g, (whole, name) => (name in params ? String(params[name]) : whole));

// `%(name)s` in the text is replaced from params.
export const gettext = (text, params = {}) => fill(one(text), params);
// %(n)s is the number itself unless params say otherwise (a grouped one, for example).
export const ngettext = (single, plural, n, params = {}) => fill(many(single, plural, n), { n, ...params });
