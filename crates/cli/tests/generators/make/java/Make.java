// Writes OpenAPI 3.0 component schemas as swagger-core makes them from Java classes.
// The first argument is the folder to write to.
import com.fasterxml.jackson.annotation.*;
import com.fasterxml.jackson.core.util.*;
import com.fasterxml.jackson.databind.*;
import com.fasterxml.jackson.databind.node.*;
import io.swagger.v3.core.converter.ModelConverters;
import io.swagger.v3.core.util.Json;
import io.swagger.v3.oas.annotations.media.*;
import java.io.File;
import java.math.*;
import java.net.*;
import java.nio.file.Files;
import java.util.*;
import javax.validation.constraints.*;

public class Make {
  public enum Color { RED, GREEN, @JsonProperty("dark-blue") BLUE }

  public static class Numbers {
    public int a; public Integer b; public long c; public float d; public double e; public BigDecimal f; public BigInteger g;
    public short h; public byte i; public boolean j; public Boolean k; public char l;
    @Min(1) @Max(9) public int m; @DecimalMin(value = "0.5", inclusive = false) @DecimalMax("99.5") public BigDecimal n;
    @Schema(multipleOf = 0.25, exclusiveMinimum = true, minimum = "0", example = "1.5") public double o;
  }

  @Schema(description = "Texts", requiredProperties = {"id", "link"})
  public static class Texts {
    @NotNull @Size(min = 1, max = 40) @Pattern(regexp = "^\\p{Alpha}[\\w-]*+$") public String name;
    public Date date; public Calendar calendar; public java.time.LocalDate local; public java.time.OffsetDateTime at; public java.time.LocalTime time;
    public UUID id; public URI link; public URL url; public byte[] bytes; public File file; public Locale locale; public Object any; public JsonNode node;
    @Schema(accessMode = Schema.AccessMode.READ_ONLY, nullable = true, defaultValue = "x", example = "y") public String ro;
    @Schema(accessMode = Schema.AccessMode.WRITE_ONLY, format = "password") public String wo;
    @Schema(allowableValues = {"a", "b"}) public String one; @Deprecated public String old; @Schema(deprecated = true) public String older;
    @JsonIgnore public String hidden; @JsonProperty("weird name/~") public String weird; public String mail;
    public Optional<String> maybe; public Color color; @Schema(description = "beside a reference", nullable = true) public Inner inner;
  }

  public static class Inner { @NotNull public String x; @Size(min = 1) public List<String> y; }

  public static class Containers {
    public List<Inner> list; public Set<String> set; @Size(min = 1, max = 3) public String[] array; public Map<String, Inner> map; public Map<Color, Integer> byEnum;
    public Map<String, List<Map<String, Object>>> deep; public Collection<? extends Number> wild; public int[][] matrix; public EnumSet<Color> colors; public Iterable<Inner> iter;
    @ArraySchema(minItems = 2, maxItems = 4, uniqueItems = true, schema = @Schema(type = "string", maxLength = 3)) public List<String> annotated;
  }

  public static class Tree { public int value; public Tree left; public List<Tree> children; }

  @JsonTypeInfo(use = JsonTypeInfo.Id.NAME, property = "kind")
  @JsonSubTypes({@JsonSubTypes.Type(value = Cat.class, name = "cat"), @JsonSubTypes.Type(value = Dog.class, name = "dog")})
  @Schema(discriminatorProperty = "kind", discriminatorMapping = {@DiscriminatorMapping(value = "cat", schema = Cat.class), @DiscriminatorMapping(value = "dog", schema = Dog.class)}, oneOf = {Cat.class, Dog.class})
  public static abstract class Pet { public String kind; public String name; }
  public static class Cat extends Pet { public int lives; }
  public static class Dog extends Pet { @NotNull public String bark; }
  public static class Owner {
    public Pet pet; public List<Pet> pets; @Schema(anyOf = {Inner.class, Tree.class}) public Object either; @Schema(not = Inner.class) public Object other;
  }
  @Schema(allOf = {Inner.class})
  public static class Extended extends Inner { public int z; }
  public static class Page<T> { public List<T> items; public String next; }
  public static class Pages { public Page<Inner> inner; public Page<Map<String, Color>> colors; }

  public static void main(String[] a) throws Exception {
    DefaultIndenter in = new DefaultIndenter(" ", "\n");
    Class<?>[] all = {Numbers.class, Texts.class, Containers.class, Tree.class, Owner.class, Pet.class, Cat.class, Extended.class, Pages.class};
    for (Class<?> c : all) {
      Map<String, io.swagger.v3.oas.models.media.Schema> m = ModelConverters.getInstance().readAll(c);
      ObjectNode root = (ObjectNode) Json.mapper().valueToTree(m.get(c.getSimpleName()));
      JsonNode named = Json.mapper().valueToTree(m);
      // References stay as they are; the components that they name come along.
      if (named.toString().contains("$ref")) root.putObject("components").set("schemas", named);
      Files.writeString(new File(a[0], c.getSimpleName().toLowerCase() + ".json").toPath(), Json.mapper().writer(new DefaultPrettyPrinter().withObjectIndenter(in).withArrayIndenter(in)).writeValueAsString(root) + "\n");
    }
  }
}
