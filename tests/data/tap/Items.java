// Uses the ordinary commands of spymemcached and prints what each answered.
import java.net.InetSocketAddress;
import java.util.Arrays;
import java.util.Map;
import java.util.TreeMap;
import net.spy.memcached.BinaryConnectionFactory;
import net.spy.memcached.CASValue;
import net.spy.memcached.ConnectionFactory;
import net.spy.memcached.DefaultConnectionFactory;
import net.spy.memcached.MemcachedClient;

public class Items {
  public static void main(String[] args) throws Exception {
    boolean isBinary = args[0].equals("binary");
    ConnectionFactory factory = isBinary ? new BinaryConnectionFactory() : new DefaultConnectionFactory();
    InetSocketAddress where = new InetSocketAddress("127.0.0.1", Integer.parseInt(args[1]));
    MemcachedClient client = new MemcachedClient(factory, Arrays.asList(where));
    tell("set", client.set("text", 0, "some text").get());
    tell("set number", client.set("number", 0, 12345).get());
    tell("get", client.get("text"));
    tell("get number", client.get("number"));
    tell("get nothing", client.get("nothing"));
    tell("add", client.add("text", 0, "other").get());
    tell("add new", client.add("new", 0, "fresh").get());
    tell("replace", client.replace("new", 0, "fresher").get());
    tell("replace nothing", client.replace("nothing", 0, "x").get());
    CASValue<Object> had = client.gets("text");
    tell("gets", had.getValue());
    tell("cas", client.cas("text", had.getCas(), "changed"));
    tell("cas again", client.cas("text", had.getCas(), "lost"));
    long now = client.gets("text").getCas();
    tell("append", client.append(now, "text", " behind").get());
    now = client.gets("text").getCas();
    tell("prepend", client.prepend(now, "text", "before ").get());
    tell("get both", client.get("text"));
    tell("set count", client.set("count", 0, "10").get());
    tell("incr", client.incr("count", 5));
    tell("decr", client.decr("count", 20));
    tell("incr nothing", client.incr("nothing", 1));
    if (isBinary) {
      tell("incr made", client.incr("made", 1, 7, 0));
      tell("gat", client.getAndTouch("text", 100).getValue());
    }
    tell("touch", client.touch("text", 100).get());
    tell("touch nothing", client.touch("nothing", 100).get());
    for (int i = 0; i < 100; i++) {
      client.set("many" + i, 0, "value " + i);
    }
    String[] keys = new String[110];
    for (int i = 0; i < keys.length; i++) {
      keys[i] = "many" + i;
    }
    Map<String, Object> found = new TreeMap<String, Object>(client.getBulk(keys));
    tell("bulk", found.size() + " " + found.hashCode());
    tell("delete", client.delete("text").get());
    tell("delete again", client.delete("text").get());
    tell("get deleted", client.get("text"));
    tell("large", client.set("large", 0, new byte[1000000]).get());
    tell("large back", ((byte[]) client.get("large")).length);
    tell("flush", client.flush().get());
    tell("get flushed", client.get("number"));
    client.shutdown();
    System.exit(0);
  }

  private static void tell(String what, Object answer) {
    System.out.println(what + ": " + answer);
  }
}
