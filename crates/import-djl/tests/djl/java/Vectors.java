// Writes properties.json: texts of the .properties format, and what java.util.Properties reads from each.
// Run `java Vectors.java > properties.json`; made with OpenJDK 17.0.15.

import java.io.StringReader;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.Random;

public class Vectors {
    static final String[] PARTS = {
        "a", "b", "ab", "=", ":", " ", "\t", "\f", "#", "!", "\\", "\\\\", "\\\n", "\\\r\n", "\\\r", "\n", "\n",
        "\r", "\r\n", "\\u0041", "\\u00e9", "\\u0020", "\\u003d", "\\uD83D\\uDE00", "\\u12", "\\t", "\\n", "\\q",
        "\\=", "\\:", "\\ ", "\\#", "é", "bear"
    };

    static final String[] PICKED = {
        "", "\n", "   ", "a", "a=", "=a", ":", "a=b", "a:b", "a b", "a = b ", "a\t:\tb", "a==b", "a=:b", "a : = b",
        "a\\ b=c", "a\\=b=c", "a\\:b:c", "a=b\\", "a=b\\\n", "a=b\\\n  c", "a=b\\\n#c", "a=b\\\n\nc=d", "a\\\n=b",
        "#a=b\\\nc=d", "!a\nb=c", "  # a\n\f\tb=c", "a=#b", "a=!b", "a=\\#b", "\\#a=b", "a=b\rc=d\r\ne=f",
        "a=\\u0041\\u00E9", "a=\\u", "a=\\u004", "a=\\u004g", "\\u0061=b", "a=\\\\", "a=\\\\\n b=c", "a=\\\\\\\n b=c",
        "a=\\t\\n\\f\\r\\0", "a=b\na=c", "\\", "\\\n", "\\\n#a", "a=b\\\r\n  c\\\r  d", "a=\\uD83D\\uDE00",
        "option.speculative_config={\"model\": \"a/b\", \"num_speculative_tokens\": 5}",
        "option.skops_trusted_types=a,\\\n    b,\\\n    c", "path=C:\\\\models\\\\a", "a = b   # not a comment"
    };

    /** Result of a text with half a surrogate pair, which strings in Rust cannot hold. */
    static final String HALF = "half";

    public static void main(String[] arguments) {
        List<String> texts = new ArrayList<>(List.of(PICKED));
        Random random = new Random(7);
        while (texts.size() < 800) {
            StringBuilder text = new StringBuilder();
            int parts = 1 + random.nextInt(14);
            for (int i = 0; i < parts; i++) {
                text.append(PARTS[random.nextInt(PARTS.length)]);
            }
            if (!read(text.toString()).equals(HALF)) {
                texts.add(text.toString());
            }
        }
        StringBuilder out = new StringBuilder("[");
        for (int i = 0; i < texts.size(); i++) {
            out.append(i == 0 ? "\n" : ",\n").append(" ").append(read(texts.get(i)));
        }
        System.out.println(out.append("\n]"));
    }

    static String read(String text) {
        List<String> read = new ArrayList<>();
        Properties properties = new Properties() {
            @Override
            public synchronized Object put(Object key, Object value) {
                String both = (String) key + "\n" + value;
                if (both.codePoints().anyMatch(c -> c >= 0xd800 && c <= 0xdfff)) {
                    throw new ArrayStoreException();
                }
                read.add("[" + json((String) key) + ", " + json((String) value) + "]");
                return super.put(key, value);
            }
        };
        String result;
        try {
            properties.load(new StringReader(text));
            result = "[" + String.join(", ", read) + "]";
        } catch (IllegalArgumentException malformed) {
            result = "null";
        } catch (ArrayStoreException half) {
            return HALF;
        } catch (java.io.IOException impossible) {
            throw new AssertionError(impossible);
        }
        return "[" + json(text) + ", " + result + "]";
    }

    static String json(String text) {
        StringBuilder json = new StringBuilder("\"");
        for (char c : text.toCharArray()) {
            if (c == '"' || c == '\\') {
                json.append('\\').append(c);
            } else if (c < ' ' || c > '~') {
                json.append(String.format("\\u%04x", (int) c));
            } else {
                json.append(c);
            }
        }
        return json.append('"').toString();
    }
}
