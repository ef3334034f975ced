// What the search found: j, k and Enter through the list.
import { walk } from "./walk.js";

walk("#list tbody tr");
