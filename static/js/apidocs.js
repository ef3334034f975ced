// The API's description, drawn by Swagger UI. What is tried out is sent as whoever is signed in; nothing is asked elsewhere.
"use strict";

const place = document.getElementById("docs");

SwaggerUIBundle({
  url: place.dataset.schema,
  domNode: place,
  deepLinking: true,
  docExpansion: "list",
  filter: true,
  validatorUrl: null,
  requestInterceptor(request) {
    if (new URL(request.url, location.href).origin === location.origin) {
      request.headers["X-CSRFToken"] = place.dataset.csrf;
    }
    return request;
  },
});
